// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/retrip/retrip"
)

// reload sets the policies in the file at path, now and, until ctx ends, within five
// seconds after the file has changed. It compares what the path leads to, so it doesn't
// matter whether an editor, mv or Kubernetes has replaced the file: mount a ConfigMap as a
// directory, not as a subPath. A file that is wrong changes
// nothing, and is logged once; one that is missing, each time.
func reload(ctx context.Context, t *retrip.Transport, path string) error {
	var seen []byte
	load := func() error {
		content, err := os.ReadFile(path)
		if err != nil || bytes.Equal(content, seen) {
			return err
		}
		seen = content
		policy, hosts, err := retrip.LoadPolicies(bytes.NewReader(content))
		if err != nil {
			return err
		}
		for _, advice := range (&retrip.Transport{Policy: policy, Hosts: hosts}).Advice() {
			slog.Warn(advice, "file", path)
		}
		return t.SetPolicies(policy, hosts)
	}
	if err := load(); err != nil {
		return err
	}
	go func() {
		for tick := time.Tick(5 * time.Second); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
				if err := load(); err != nil {
					slog.Error("the previous policies stay in force", "file", path, "error", err)
				}
			}
		}
	}()
	return nil
}
