// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"time"

	_ "modernc.org/sqlite" // SQLite in pure Go
)

//go:embed schema.sql
var schema string

// Store keeps endpoints, messages and deliveries.
type Store struct{ db *sql.DB }

// Delivery is one message for one endpoint.
type Delivery struct {
	ID, Runs     int64 // Runs includes the current one
	Message      string
	Payload      []byte
	Endpoint     string
	URL          string
	Secrets      string
	Failures     int       // consecutive failed runs to the endpoint before this one
	FailingSince time.Time // the first of them, or this one
}

// Open opens the store in a file, creating it if necessary. Deliveries that
// were in progress when the last process died become due again. Another process
// would repeat those of this one, so the file is locked until Close.
func Open(ctx context.Context, file string) (*Store, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=locking_mode(exclusive)&_pragma=journal_mode(wal)&_pragma=foreign_keys(1)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer: queue here instead of at its lock
	if _, err := db.ExecContext(ctx, schema+"update deliveries set state = 'pending' where state = 'sending'"); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", file, err), db.Close())
	}
	return &Store{db}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.db.Close() }

// AddEndpoint adds an endpoint, or updates its URL and secrets and enables it.
// To replace a secret, pass both for some days, separated by a space.
func (s *Store) AddEndpoint(ctx context.Context, id, url, secrets string) error {
	if _, err := sign(secrets, id, "", nil); err != nil {
		return fmt.Errorf("endpoint %s: %w", id, err)
	}
	_, err := s.db.ExecContext(ctx, `insert into endpoints (id, url, secrets) values (?, ?, ?)
		on conflict (id) do update set url = excluded.url, secrets = excluded.secrets, disabled = '', failures = 0, rests_until = 0`, id, url, secrets)
	return err
}

// Enqueue stores a message for every enabled endpoint and returns its id. Pass
// the transaction that records the event: then every event has its message, and
// every message its event.
func Enqueue(ctx context.Context, tx *sql.Tx, payload []byte) (string, error) {
	id, now := "msg_"+rand.Text(), time.Now().UnixMilli()
	if _, err := tx.ExecContext(ctx, `insert into messages values (?, ?, ?)`, id, payload, now); err != nil {
		return "", err
	}
	_, err := tx.ExecContext(ctx, `insert into deliveries (message, endpoint, due) select ?, id, ? from endpoints where disabled = ''`, id, now)
	return id, err
}

// nextDue selects the delivery to send next and its time: the earliest of each
// endpoint's first due deliveries. An endpoint gets up to four deliveries at a
// time, or one if it fails; all that fail get half of the workers.
const nextDue = `
	with first as materialized (
		select e.rests_until, (select d.id from deliveries d where d.endpoint = e.id and d.state = 'pending' order by d.due limit 1) as id
		from endpoints e where e.disabled = ''
		and (select count(*) from deliveries d where d.endpoint = e.id and d.state = 'sending') < iif(e.failures = 0, 4, 1)
		and (e.failures = 0 or ?1 > (select count(*) from deliveries d join endpoints f on f.id = d.endpoint where d.state = 'sending' and f.failures > 0)))
	select d.id, max(iif(d.due > ?2, 0, d.due), iif(first.rests_until > ?2, 0, first.rests_until)) as at
	from first join deliveries d on d.id = first.id order by at limit 1`

// claim takes the delivery that is due first. If none is due, it returns nil and
// the time to check again, or the zero time if that takes the end of a run.
func (s *Store) claim(ctx context.Context) (*Delivery, time.Time, error) {
	now := time.Now()
	var id, at, failing int64
	err := s.db.QueryRowContext(ctx, nextDue, workers/2, now.Add(farthest).UnixMilli()).Scan(&id, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, time.Time{}, nil
	}
	if err != nil || at > now.UnixMilli() {
		return nil, time.UnixMilli(at), err
	}
	if _, err := s.db.ExecContext(ctx, `update deliveries set state = 'sending', runs = runs + 1 where id = ?`, id); err != nil {
		return nil, time.Time{}, err
	}
	d := Delivery{ID: id}
	err = s.db.QueryRowContext(ctx, `select d.runs, m.id, m.payload, e.id, e.url, e.secrets, e.failures,
		iif(e.failures = 0 or e.rests_until < ?2, ?3, e.failing)
		from deliveries d join messages m on m.id = d.message join endpoints e on e.id = d.endpoint where d.id = ?1`,
		id, now.Add(-streakEnds).UnixMilli(), now.UnixMilli()).
		Scan(&d.Runs, &d.Message, &d.Payload, &d.Endpoint, &d.URL, &d.Secrets, &d.Failures, &failing)
	d.FailingSince = time.UnixMilli(failing)
	return &d, time.Time{}, err
}

// finish records how the run of a delivery ended.
func (s *Store) finish(ctx context.Context, d *Delivery, v verdict) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	now := time.Now()
	run := func(query string, args ...any) {
		if err == nil {
			_, err = tx.ExecContext(ctx, query, args...)
		}
	}
	run(`update deliveries set state = ?, due = ?, outcome = ? where id = ?`, v.state, now.Add(v.wait).UnixMilli(), v.outcome, d.ID)
	if v.state == delivered {
		run(`update endpoints set failures = 0, rests_until = 0 where id = ?`, d.Endpoint)
	} else {
		run(`update endpoints set failing = ?1, failures = failures + 1, rests_until = max(iif(rests_until > ?2, 0, rests_until), ?3),
			disabled = iif(?4 = '', disabled, ?4) where id = ?5`,
			d.FailingSince.UnixMilli(), now.Add(farthest).UnixMilli(), now.Add(v.rest).UnixMilli(), v.disable, d.Endpoint)
	}
	// Includes deliveries that were in progress when the endpoint was disabled.
	run(`update deliveries set state = 'dead', outcome = 'endpoint disabled' where endpoint = ?1 and state = 'pending'
		and (select disabled from endpoints where id = ?1) <> ''`, d.Endpoint)
	if err != nil {
		return err
	}
	return tx.Commit()
}

// release returns a delivery whose run was cut off, as if it had not started.
func (s *Store) release(ctx context.Context, d *Delivery) error {
	_, err := s.db.ExecContext(ctx, `update deliveries set state = 'pending', runs = runs - 1 where id = ?`, d.ID)
	return err
}

// Replay makes the dead letters of an endpoint pending again, from the start of
// the schedule, and enables the endpoint.
func (s *Store) Replay(ctx context.Context, endpoint string) (n int64, err error) {
	result, err := s.db.ExecContext(ctx, `update endpoints set disabled = '', failures = 0, rests_until = 0 where id = ?1;
		update deliveries set state = 'pending', runs = 0, due = ?2 where endpoint = ?1 and state = 'dead'`, endpoint, time.Now().UnixMilli())
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Prune deletes finished deliveries that were written before a time, dead
// letters included.
func (s *Store) Prune(ctx context.Context, before time.Time) error {
	_, err := s.db.ExecContext(ctx, `
		delete from deliveries where state in ('delivered', 'dead') and message in (select id from messages where created < ?1);
		delete from messages where created < ?1 and id not in (select message from deliveries)`, before.UnixMilli())
	return err
}

// Counts returns how many deliveries to an endpoint are in each state.
func (s *Store) Counts(ctx context.Context, endpoint string) (map[string]int, error) {
	counts := map[string]int{}
	for _, state := range []string{pending, sending, delivered, dead} {
		var n int
		row := s.db.QueryRowContext(ctx, `select count(*) from deliveries where endpoint = ? and state = ?`, endpoint, state)
		if err := row.Scan(&n); err != nil {
			return nil, err
		} else if n > 0 {
			counts[state] = n
		}
	}
	return counts, nil
}
