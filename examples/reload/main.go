// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !js

// Reload replaces policies at run time when their file changes: on SIGHUP, and
// within seconds without a signal. It also works with a Kubernetes ConfigMap,
// which changes by swapping a symbolic link. It rejects an invalid file as a
// whole and reports it once; the previous policies stay in force. With
// -policies it watches that file until it is interrupted; without, it
// demonstrates all of this with a file of its own.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/retrip/retrip"
)

// policies loads the policies of a Transport from a file.
type policies struct {
	path      string
	transport *retrip.Transport
	told      func(error) // called for each new content: with nil if it is in force, else with the reason

	seen []byte // the last content examined
	read string // why the file could not be read at the last attempt; empty if it could
}

// load applies the content of the file if it is new, or if again is set.
func (p *policies) load(again bool) {
	content, err := os.ReadFile(p.path)
	if err != nil {
		if again || p.read != err.Error() {
			p.read = err.Error()
			p.told(err)
		}
		return
	}
	if p.read == "" && !again && bytes.Equal(content, p.seen) {
		return
	}
	p.read, p.seen = "", content
	p.told(p.use(content))
}

// use applies the policies in content: all of them or none.
func (p *policies) use(content []byte) error {
	policy, hosts, err := retrip.LoadPolicies(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	for _, advice := range (&retrip.Transport{Policy: policy, Hosts: hosts}).Advice() {
		log.Printf("%s: %s", p.path, advice)
	}
	return p.transport.SetPolicies(policy, hosts)
}

// watch loads the file now, on each signal, and when its content has changed,
// which it checks at the given interval. It compares the content that the path
// leads to, so it doesn't matter whether an editor, mv or the kubelet has
// replaced the file. It returns when ctx ends.
func (p *policies) watch(ctx context.Context, signals <-chan os.Signal, every time.Duration) {
	p.load(true)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
			p.load(true)
		case <-tick.C:
			p.load(false)
		}
	}
}

func main() {
	path := flag.String("policies", "", "file of policies to watch until interrupted, such as /etc/retrip/policies.json")
	flag.Parse()
	transport := &retrip.Transport{}
	told := func(err error) {
		if err != nil {
			log.Printf("policies refused, the previous ones stay in force: %v", err)
			return
		}
		policy, err := transport.PolicyFor("api.example.com:443")
		if err != nil {
			log.Fatal(err)
		}
		log.Printf("policies in force: api.example.com gets %d attempts", policy.MaxAttempts)
	}
	if *path == "" {
		log.Print("three versions of a file of our own, the second one invalid; use -policies to watch yours")
		show(transport, told)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	log.Printf("watching %s until interrupted", *path)
	(&policies{path: *path, transport: transport, told: told}).watch(ctx, hangups, 5*time.Second)
}

// show mounts a ConfigMap as the kubelet does, and updates it twice.
func show(transport *retrip.Transport, told func(error)) {
	dir, err := os.MkdirTemp("", "retrip-reload-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	p := &policies{path: filepath.Join(dir, "policies.json"), transport: transport, told: told}
	for i, content := range []string{`{"max_attempts": 3}`, `{"max_attempts": 3, "hosts": {"api.example.com": {"max_attempts": "many"}}}`, `{"max_attempts": 2}`} {
		if err := project(dir, fmt.Sprintf("..version_%d", i), content); err != nil {
			log.Fatal(err)
		}
		p.load(false)
	}
	log.Print("so a mistake in the file changes nothing, and the next valid version is in force without a restart")
}

// project does what the kubelet does with a ConfigMap of one file: the file is
// a link into ..data, and ..data a link to a directory, which is replaced
// atomically.
func project(dir, version, content string) error {
	if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, version, "policies.json"), []byte(content), 0o600); err != nil {
		return err
	}
	file, data := filepath.Join(dir, "policies.json"), filepath.Join(dir, "..data")
	before, _ := os.Readlink(data)
	if err := os.Symlink(version, data+"_tmp"); err != nil {
		return err
	}
	if err := os.Rename(data+"_tmp", data); err != nil {
		return err
	}
	if before == "" {
		return os.Symlink(filepath.Join("..data", "policies.json"), file)
	}
	return os.RemoveAll(filepath.Join(dir, before))
}
