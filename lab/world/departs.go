// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import "time"

// depart is a server of HTTP/2 that goes away at the first request, which it hasn't
// processed. net/http sends the request again over another connection, by itself.
func (r *relay) depart(x *stream) {
	in := &intake{most: 1 << 30}
	in.cond.L = &in.mu
	r.w.relays.Go(func() { in.fill(r.near) })
	defer in.drop()
	defer func() {
		_ = r.near.Close()
		_ = r.far.Close()
	}()
	var sent []byte
	for {
		in.await()
		time.Sleep(r.site.plan.Latency + x.tiny())
		data, err := in.take()
		if r.frozen.Load() {
			<-r.w.ended
			return
		}
		if err != nil {
			return
		}
		if sent = append(sent, data...); asks(sent) {
			r.w.log("s%d conn %d goes away", r.site.number, r.number)
			_, _ = r.near.Write(goodbye)
			return
		}
	}
}

// goodbye is an empty SETTINGS frame and a GOAWAY that names no stream as processed.
var goodbye = []byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// asks reports whether data, the beginning of a connection, has the HEADERS of a request.
func asks(data []byte) bool {
	for at := len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); at+9 <= len(data); {
		if data[at+3] == 1 {
			return true
		}
		at += 9 + int(data[at])<<16 + int(data[at+1])<<8 + int(data[at+2])
	}
	return false
}
