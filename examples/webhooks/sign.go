// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// signer signs each attempt as Standard Webhooks specifies: the id stays the
// same, and the timestamp is the attempt's. It belongs below retrip. Above it,
// a retry would carry the timestamp of the first attempt, and a receiver that
// allows five minutes would refuse it after a long wait.
type signer struct{ base http.RoundTripper }

type deliveryKey struct{}

func (s signer) RoundTrip(req *http.Request) (*http.Response, error) {
	d := req.Context().Value(deliveryKey{}).(*Delivery)
	now := strconv.FormatInt(time.Now().Unix(), 10)
	signature, err := sign(d.Secrets, d.Message, now, d.Payload)
	if err != nil {
		return nil, errors.Join(err, req.Body.Close())
	}
	req = req.Clone(req.Context())
	req.Header.Set("Webhook-Id", d.Message)
	req.Header.Set("Webhook-Timestamp", now)
	req.Header.Set("Webhook-Signature", signature)
	return s.base.RoundTrip(req)
}

// sign makes a signature by each of the secrets, which spaces separate. While a
// secret is replaced, receivers know the old or the new one.
func sign(secrets, id, timestamp string, payload []byte) (string, error) {
	var signatures []string
	for secret := range strings.FieldsSeq(secrets) {
		encoded, ok := strings.CutPrefix(secret, "whsec_")
		key, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(key) < 24 || len(key) > 64 {
			return "", errors.New("a secret is whsec_ and 24 to 64 bytes in base64")
		}
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, payload)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	if signatures == nil {
		return "", errors.New("a secret is missing")
	}
	return strings.Join(signatures, " "), nil
}
