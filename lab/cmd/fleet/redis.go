// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/retrip/retrip/lab"
)

// guardCommand is the first argument of this program when it runs as the guard
// of a server.
const guardCommand = "guard"

// guard runs a command until guard's own input ends. The command thus ends,
// however the program that started the guard ends.
func guard(command []string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cmd.Process.Kill()
	}()
	cmd.Wait()
	return nil
}

// store is a redis-server on a free port of loopback.
type store struct {
	child  *child
	client *redis.Client
}

func startRedis(ctx context.Context) (*store, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server isn't installed: .ci/tools redis-server")
	}
	addr, err := lab.FreeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	guard, err := startChild(ctx, 0, guardCommand, path, "--port", port, "--tcp-backlog", "4096", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", os.TempDir())
	if err != nil {
		return nil, err
	}
	s := &store{child: guard, client: redis.NewClient(&redis.Options{Addr: addr})}
	for range 100 {
		if err = s.client.Ping(ctx).Err(); err == nil {
			return s, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.stop()
	return nil, fmt.Errorf("redis-server at %s: %w", addr, err)
}

func (s *store) addr() string { return s.client.Options().Addr }

func (s *store) stop() {
	s.client.Close()
	s.child.stop()
}

var evalsha = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`)

// operations returns the number of account operations that the server has run.
func (s *store) operations(ctx context.Context) int64 {
	text, _ := s.client.Info(ctx, "commandstats").Result()
	match := evalsha.FindStringSubmatch(text)
	if match == nil {
		return 0
	}
	n, _ := strconv.ParseInt(match[1], 10, 64)
	return n
}
