// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/retrip/retrip"
)

// Sender sends the deliveries that are due.
type Sender struct {
	store  *Store
	client *http.Client
	logger *slog.Logger
	wake   chan struct{}
}

// NewSender returns a sender whose attempts go through base. Use [Public] for
// endpoints that strangers name.
func NewSender(store *Store, base http.RoundTripper, logger *slog.Logger) *Sender {
	transport := &retrip.Transport{
		Base:   signer{base},
		Logger: logger,
		Policy: retrip.Policy{
			MaxAttempts:    2, // longer failures belong in the queue, which outlives this program
			Backoff:        retrip.Backoff{Base: time.Second},
			AttemptTimeout: 20 * time.Second,
			MaxWait:        5 * time.Second,
			Idempotent:     func(*http.Request) bool { return true }, // receivers know the id of a repeated message
		},
	}
	return &Sender{store: store, logger: logger, wake: make(chan struct{}, 1), client: &http.Client{
		Transport: transport,
		// An endpoint that has moved must update its URL.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Send stores a message for every endpoint and wakes Run.
func (s *Sender) Send(ctx context.Context, payload []byte) (id string, err error) {
	tx, err := s.store.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback()
	if id, err = Enqueue(ctx, tx, payload); err != nil {
		return "", err
	}
	if err := tx.Commit(); err != nil {
		return "", err
	}
	s.Wake()
	return id, nil
}

// Wake makes Run look at the store. Call it after your own Enqueue or Replay.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends, and returns when the runs in progress have ended. A
// non-nil error comes from the store.
func (s *Sender) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, workers)
	failed := make(chan error, workers)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case slots <- struct{}{}:
		}
		d, next, err := s.store.claim(context.WithoutCancel(ctx)) // must complete or have no effect
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if d != nil {
			running.Go(func() {
				if err := s.deliver(ctx, d); err != nil {
					failed <- fmt.Errorf("message %s: %w", d.Message, err)
				}
				<-slots
				s.Wake()
			})
			continue
		}
		<-slots
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(min(time.Until(next), 5*time.Minute)) // the clock may be set meanwhile
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer:
		}
	}
}

// deliver makes one run of a delivery.
func (s *Sender) deliver(ctx context.Context, d *Delivery) error {
	v := s.attempt(ctx, d)
	if ctx.Err() != nil && v.state != delivered {
		return s.store.release(context.WithoutCancel(ctx), d)
	}
	s.logger.Info("run", "message", d.Message, "endpoint", d.Endpoint, "run", d.Runs, "state", v.state, "outcome", v.outcome)
	return s.store.finish(context.WithoutCancel(ctx), d, v)
}

func (s *Sender) attempt(ctx context.Context, d *Delivery) verdict {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, deliveryKey{}, d), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, bytes.NewReader(d.Payload))
	if err != nil {
		return decide(d, nil, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return decide(d, nil, err)
	}
	io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be reused
	resp.Body.Close()
	return decide(d, resp, nil)
}

// Public returns a base that connects only to public addresses, whatever a name
// resolves to: strangers name the endpoints, and the sender can reach addresses
// that they can't.
func Public() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if ip := at.Addr().Unmap(); !ip.IsGlobalUnicast() || ip.IsPrivate() || sharedSpace.Contains(ip) {
			return fmt.Errorf("%s is not a public address", ip)
		}
		return nil
	}}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.Proxy = nil // a proxy would connect for us, without this check
	base.DialContext = dialer.DialContext
	return base
}

var sharedSpace = netip.MustParsePrefix("100.64.0.0/10") // RFC 6598
