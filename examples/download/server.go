// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// server serves a file over connections that break.
type server struct {
	http.Server
	url, sum string
}

// startServer starts a server of a file of the given size. Each connection
// breaks after the given number of bytes. It delivers perSecond bytes per
// second, if that is positive.
func startServer(size int, every int64, perSecond int) (*server, error) {
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{url: "http://" + l.Addr().String() + "/model.bin", sum: sum}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"`+sum+`"`)
		http.ServeContent(w, r, "model.bin", time.Time{}, bytes.NewReader(content))
	})
	go func() { _ = s.Serve(&brittle{l, every, perSecond}) }()
	return s, nil
}

// brittle is a listener whose connections break.
type brittle struct {
	net.Listener
	every     int64
	perSecond int
}

func (l *brittle) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &brittleConn{Conn: conn, perSecond: l.perSecond}
	c.left.Store(l.every)
	return c, nil
}

// brittleConn is a connection that breaks after a number of bytes.
type brittleConn struct {
	net.Conn
	left      atomic.Int64
	perSecond int
}

func (c *brittleConn) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n := int(min(int64(len(p)-written), 64<<10, c.left.Load()))
		if n == 0 {
			c.Close()
			return written, net.ErrClosed
		}
		m, err := c.Conn.Write(p[written : written+n])
		written += m
		if err != nil {
			return written, err
		}
		c.left.Add(-int64(m))
		if c.perSecond > 0 {
			time.Sleep(time.Duration(m) * time.Second / time.Duration(c.perSecond))
		}
	}
	return written, nil
}
