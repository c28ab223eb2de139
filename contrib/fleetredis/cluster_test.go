// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// clusterNode runs a server that is a node of a cluster and serves the given
// slots.
func clusterNode(t *testing.T, from, to int, args ...string) *server {
	t.Helper()
	srv := start(t, "", append([]string{"--cluster-enabled", "yes"}, args...)...)
	admin := redis.NewClient(&redis.Options{Addr: srv.address})
	defer admin.Close()
	require.NoError(t, admin.ClusterAddSlotsRange(t.Context(), from, to).Err())
	return srv
}

// With the one address of a cluster, such as that of a configuration endpoint,
// the error names the setting that helps. With the setting, accounts are at all
// nodes, and one whose node is missing has an error of its own.
//
//retrip:promise P22
func TestStore_Cluster(t *testing.T) {
	const half, slots = 8192, 16384
	a := clusterNode(t, 0, half-1, "--cluster-require-full-coverage", "no")
	b := clusterNode(t, half, slots-1, "--cluster-require-full-coverage", "no")
	admin := redis.NewClient(&redis.Options{Addr: a.address})
	defer admin.Close()
	host, port, err := net.SplitHostPort(b.address)
	require.NoError(t, err)
	require.NoError(t, admin.ClusterMeet(t.Context(), host, port).Err())
	other := redis.NewClient(&redis.Options{Addr: b.address})
	defer other.Close()
	require.Eventually(t, func() bool {
		for _, node := range []*redis.Client{admin, other} {
			all, err := node.ClusterShards(t.Context()).Result()
			all = slices.DeleteFunc(all, func(s redis.ClusterShard) bool { return len(s.Slots) == 0 })
			if err != nil || len(all) != 2 || !strings.Contains(node.ClusterInfo(t.Context()).Val(), "cluster_state:ok") {
				return false
			}
		}
		return true
	}, 30*time.Second, 50*time.Millisecond)

	single := dial(t, a.address, Options{})
	moved := 0
	for i := range 50 {
		if _, err := single.Add(t.Context(), fmt.Sprintf("%d.example:80", i*7919), -1, 500); err != nil {
			moved++
			assert.ErrorContains(t, err, "MOVED")
			assert.ErrorContains(t, err, "IsClusterMode")
		}
	}
	assert.Positive(t, moved)
	assert.Less(t, moved, 50)

	all, err := Dial(&redis.UniversalOptions{Addrs: []string{a.address}, IsClusterMode: true}, Options{})
	require.NoError(t, err)
	defer all.Close()
	for i := range 50 {
		assert.Less(t, add(t, all, fmt.Sprintf("%d.example:80", i*7919), -1, 500), 500.0)
	}
	require.NoError(t, admin.ClusterDelSlotsRange(t.Context(), 0, half-1).Err())
	broken := 0
	for i := range 50 {
		if _, err := all.Add(t.Context(), fmt.Sprintf("%d.example:80", i*7919), -1, 500); err != nil {
			broken++
			assert.ErrorContains(t, err, "CLUSTERDOWN")
			assert.ErrorContains(t, err, "cluster-require-full-coverage")
		}
	}
	assert.Equal(t, 50-moved, broken, "the others are in use")
}

// The setting for a cluster names itself where there is none.
func TestStore_NoCluster(t *testing.T) {
	s, err := Dial(&redis.UniversalOptions{Addrs: []string{start(t, "").address}, IsClusterMode: true}, Options{})
	require.NoError(t, err)
	defer s.Close()
	assert.ErrorContains(t, errOf(s.Add(t.Context(), "a:443", -1, 500)), "IsClusterMode")
}

// The Sentinels say where the primary is, also after it has changed.
//
//retrip:promise P22
func TestStore_Sentinel(t *testing.T) {
	primary := start(t, "")
	host, port, err := net.SplitHostPort(primary.address)
	require.NoError(t, err)
	replica := start(t, "", "--replicaof", host, port)
	path, err := exec.LookPath(primary.path)
	require.NoError(t, err)
	address, sentinelPort := free(t)
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "port %s\nbind 127.0.0.1\nsentinel monitor main %s %s 1\nsentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n", sentinelPort, host, port), 0o600))
	sentinel := exec.Command(path, file, "--sentinel")
	out, err := sentinel.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, sentinel.Start())
	t.Cleanup(func() {
		sentinel.Process.Kill()
		sentinel.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "+slave slave") {
			break // it knows the replica
		}
	}
	go io.Copy(io.Discard, out)

	s, err := Dial(&redis.UniversalOptions{Addrs: []string{address}, MasterName: "main"}, Options{})
	require.NoError(t, err)
	defer s.Close()
	assert.Equal(t, 499.0, add(t, s, "a:443", -1, 500))
	atReplica := dial(t, replica.address, Options{})
	_, err = atReplica.Add(t.Context(), "a:443", -1, 500)
	assert.ErrorContains(t, err, "READONLY")
	assert.ErrorContains(t, err, "MasterName")
	primary.kill()
	assert.Eventually(t, func() bool {
		_, err := s.Add(t.Context(), "a:443", -1, 500)
		return err == nil
	}, 30*time.Second, 100*time.Millisecond)
}
