// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"errors"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
