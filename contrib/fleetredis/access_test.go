// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
)

// The rights that the package comment names are enough, and all of them are
// needed.
//
//retrip:promise P22
func TestStore_ACL(t *testing.T) {
	rights := []string{"+evalsha", "+eval", "+get", "+set", "+del"}
	for without := -1; without < len(rights); without++ {
		name, missing := "all", ""
		rules := slices.Clone(rights)
		if without >= 0 {
			missing = rights[without]
			name, rules = "without "+missing, slices.Delete(rules, without, without+1)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := start(t, "", limited(rules)...)
			s, err := Dial(&redis.UniversalOptions{Addrs: []string{srv.address}, Username: "fleet", Password: "secret"}, Options{})
			require.NoError(t, err)
			defer s.Close()
			err = errors.Join(errOf(s.Add(t.Context(), "a:443", -1, 500)), errOf(s.Add(t.Context(), "a:443", 1, 500)))
			if missing == "" {
				assert.NoError(t, err)
			} else {
				assert.Regexp(t, "NOPERM|can't run this command", err)
			}
		})
	}
	srv := start(t, "", limited(rights)...)
	for want, o := range map[string]redis.UniversalOptions{
		"NOAUTH":    {},
		"WRONGPASS": {Username: "fleet", Password: "guessed"},
	} {
		o.Addrs = []string{srv.address}
		s, err := Dial(&o, Options{})
		require.NoError(t, err)
		defer s.Close()
		assert.ErrorContains(t, errOf(s.Add(t.Context(), "a:443", -1, 500)), want)
	}
	s, err := Dial(&redis.UniversalOptions{Addrs: []string{srv.address}, Username: "fleet", Password: "secret"}, Options{Prefix: "others"})
	require.NoError(t, err)
	defer s.Close()
	assert.ErrorContains(t, errOf(s.Add(t.Context(), "a:443", -1, 500)), "NOPERM", "keys of others")
}

// limited returns the arguments of a server with a user that has the given
// rights.
func limited(rights []string) []string {
	return append([]string{"--user", "default", "off", "--user", "fleet", "on", ">secret", "~retrip:*", "-@all"}, rights...)
}

func errOf(_ float64, err error) error { return err }

// certificates writes memhttp's certificate and its key to dir.
func certificates(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	pair := memhttp.Certificate()
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return cert, key
}

//retrip:promise P22
func TestStore_TLS(t *testing.T) {
	cert, key := certificates(t, t.TempDir())
	authority, pair := memhttp.Roots(), memhttp.Certificate()
	srv := start(t, "", "--tls-port", "0", "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "yes")
	admin := redis.NewClient(&redis.Options{Addr: srv.address})
	defer admin.Close()
	addr, port := free(t)
	require.NoError(t, admin.ConfigSet(t.Context(), "tls-port", port).Err())

	add := func(config *tls.Config) (float64, error) {
		s, err := Dial(&redis.UniversalOptions{Addrs: []string{addr}, TLSConfig: config, DialTimeout: time.Minute}, Options{})
		require.NoError(t, err)
		defer s.Close()
		return s.Add(t.Context(), "a:443", -1, 500)
	}
	level, err := add(&tls.Config{RootCAs: authority, Certificates: []tls.Certificate{pair}})
	require.NoError(t, err)
	assert.Equal(t, 499.0, level)
	_, err = add(&tls.Config{Certificates: []tls.Certificate{pair}})
	var unknown x509.UnknownAuthorityError
	assert.ErrorAs(t, err, &unknown, "nobody vouches for the server")
	_, err = add(&tls.Config{RootCAs: authority})
	assert.Error(t, err, "nobody vouches for the client")
	_, err = add(nil)
	assert.Error(t, err, "a client without TLS")
	assert.Equal(t, "1.000000", admin.Get(t.Context(), "retrip:default:0:a:443").Val(), "none of the others got through")
}
