// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// Part is a piece of a representation: the body of one response.
type Part struct {
	Body io.ReadCloser

	// Cut makes a Read of Body that is in progress return an error.
	Cut Cutter

	// Skip is the number of bytes to discard first.
	Skip int64

	// Until is the offset after the last useful byte.
	Until int64
}

// Cutter ends a Read that is in progress.
type Cutter interface{ Cut() }

// Source provides the rest of a representation.
type Source interface {
	// Continue returns the part that begins at the given offset, after the
	// previous part ended with err. Its error is the error for the reader. When
	// ctx ends, Continue and a Read of the part's body must return at once.
	Continue(ctx context.Context, at int64, err error) (Part, error)

	// Dispose closes a body that has ended with an error.
	Dispose(io.ReadCloser)
}

// Stream is a response body that must make progress, or that another response
// continues when it breaks. One goroutine may call Read while another calls
// Close.
type Stream struct {
	original io.ReadCloser

	source Source // nil if nothing continues the body
	ctx    context.Context
	at     int64 // offset of the next byte
	until  int64 // offset after the last byte of the current part
	end    int64 // offset after the last byte of all
	first  bool  // the current part is the response's own body
	early  error // how the response's own body ended before there was a source
	broken error // how the current part ended
	err    error // how the stream ended

	idle    time.Duration // 0 if no progress is required
	stalled error         // error for the reader after a stall
	watch   watch

	mu     sync.Mutex // guards the fields below
	body   io.ReadCloser
	cut    Cutter
	cancel context.CancelFunc // ends what runs after the first part
	closed bool
}

// Init prepares s for use as a response body that begins with part.
func (s *Stream) Init(part Part) {
	s.original, s.body, s.cut, s.first = part.Body, part.Body, part.Cut, true
}

// Original returns the body that s was made from.
func (s *Stream) Original() io.ReadCloser { return s.original }

// Resumable makes source continue s if it breaks before the offset end. A
// negative end is unknown; s then ends where its body says so. The body of s
// begins at the offset at. Some of it may have been read already, and it may
// have ended. The source works until ctx ends.
func (s *Stream) Resumable(ctx context.Context, source Source, at, end int64) {
	s.ctx, s.source = ctx, source
	s.at += at
	s.until, s.end = end, end
	if s.early != nil {
		s.ended(s.early)
	}
}

// MustProgress makes s end with the error stalled if a Read waits for limit
// without a byte. s ends at most half a second after limit.
func (s *Stream) MustProgress(limit time.Duration, stalled error) {
	s.idle, s.stalled = limit, stalled
}

// Read reads the body and its continuations.
func (s *Stream) Read(p []byte) (int, error) {
	for {
		switch {
		case s.err != nil:
			return 0, s.over()
		case s.broken != nil:
			if err := s.proceed(p); err != nil {
				return 0, err
			}
		}
		room := p
		if !s.first {
			room = p[:min(int64(len(p)), s.until-s.at)]
			if len(room) == 0 && len(p) > 0 {
				// The part has been read completely.
				s.ended(io.EOF)
				continue
			}
		}
		n, err := s.read(room)
		if n < 0 || n > len(room) {
			// The number of bytes read is unknown from here on.
			s.err = errNegative
			s.quiet()
			return 0, s.err
		}
		s.at += int64(n)
		switch {
		case err == nil:
			return n, nil
		case s.source == nil:
			s.early = err
			s.quiet()
			return n, err
		}
		if s.ended(err); s.err != nil || n > 0 {
			return n, s.err
		}
	}
}

// over returns the error of a Read after the end.
func (s *Stream) over() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return http.ErrBodyReadAfterClose
	}
	return s.err
}

// ended records that the current part has ended with err.
func (s *Stream) ended(err error) {
	switch {
	case s.end >= 0 && s.at == s.end, s.end < 0 && err == io.EOF:
		// The reader has all bytes, so an error after them doesn't matter.
		s.err = io.EOF
		s.quiet()
	case s.end >= 0 && s.at > s.end:
		// The body is longer than announced, so its offset in the
		// representation is unknown.
		s.err = err
		s.quiet()
	case err == io.EOF:
		s.broken = io.ErrUnexpectedEOF
	default:
		s.broken = err
	}
}

// quiet ends the alarm and the context of continuations once the reader has
// everything.
func (s *Stream) quiet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch.stop()
	if s.cancel != nil {
		s.cancel()
	}
}

// read reads from the current part.
func (s *Stream) read(p []byte) (int, error) {
	// Only this goroutine changes s.body.
	if s.idle == 0 {
		return s.body.Read(p)
	}
	if s.watch.enter() {
		s.arm()
	}
	n, err := s.body.Read(p)
	if s.watch.leave(n > 0) && err != nil && err != io.EOF {
		err = s.stalled
	}
	return n, err
}

// proceed switches to the next part, or returns an error if there is none. It
// uses p as the buffer for bytes to discard.
func (s *Stream) proceed(p []byte) error {
	for {
		part, err := s.next(s.broken)
		if err != nil {
			return err
		}
		if s.broken = s.skip(part.Skip, p); s.broken == nil {
			return nil
		}
	}
}

// next makes the next part current.
func (s *Stream) next(err error) (Part, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return Part{}, http.ErrBodyReadAfterClose
	}
	old := s.body
	s.body, s.cut = nothing{}, nil
	if s.cancel != nil {
		s.cancel()
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(s.ctx)
	s.mu.Unlock()

	part, err := s.ask(ctx, old, err)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.cancel()
		if err == nil {
			s.source.Dispose(part.Body)
		}
		return Part{}, http.ErrBodyReadAfterClose
	}
	if err != nil {
		s.cancel()
		s.err = err
		return Part{}, err
	}
	s.body, s.cut, s.until, s.first = part.Body, part.Cut, part.Until, false
	s.watch.reset()
	return part, nil
}

// ask disposes of the previous part's body and asks for the next part. If any
// of that panics, s ends with broken.
func (s *Stream) ask(ctx context.Context, old io.ReadCloser, broken error) (Part, error) {
	s.err = broken
	defer func() {
		if s.err != nil {
			s.quiet()
		}
	}()
	s.source.Dispose(old)
	part, err := s.source.Continue(ctx, s.at, broken)
	s.err = nil
	return part, err
}

// skip discards n bytes of the current part.
func (s *Stream) skip(n int64, p []byte) error {
	if n > 0 && len(p) < 512 {
		p = make([]byte, min(n, 16<<10))
	}
	for idle := 0; n > 0 && idle < patience; idle++ {
		room := p[:min(n, int64(len(p)))]
		m, err := s.read(room)
		switch {
		case m < 0 || m > len(room):
			return errNegative
		case m > 0:
			idle = 0
		}
		if n -= int64(m); err != nil && n > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	if n > 0 {
		return io.ErrNoProgress
	}
	return nil
}

// Close closes the body and ends a continuation that is in progress.
func (s *Stream) Close() error {
	s.mu.Lock()
	body, cancel := s.body, s.cancel
	s.closed = true
	s.watch.stop()
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	return body.Close()
}

// nothing is the body of a Stream between two parts.
type nothing struct{}

func (nothing) Read([]byte) (int, error) { return 0, http.ErrBodyReadAfterClose }
func (nothing) Close() error             { return nil }
