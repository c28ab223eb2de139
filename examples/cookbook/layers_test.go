// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// The token endpoint says no, is away for a moment, or its tokens expire in a wait.
func TestOAuth2(t *testing.T) {
	for name, tt := range map[string]struct {
		token  []int // statuses of the token endpoint; then 200
		waits  int   // 503s of the API that ask for 30 s each; a token lives for a minute
		method string
		asked  int
		sends  int
		last   string // the token of the last attempt
	}{
		"expires in the waits": {nil, 3, "GET", 2, 4, "Bearer token-2"},
		"wrong secret":         {[]int{401, 401, 401, 401}, 0, "GET", 1, 0, ""},
		"invalid grant":        {[]int{400, 400, 400, 400}, 0, "POST", 1, 0, ""},
		"endpoint is away":     {[]int{503, 503}, 0, "GET", 3, 1, "Bearer token-3"},
		"endpoint throttles":   {[]int{429}, 0, "GET", 2, 1, "Bearer token-2"},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			asked := 0
			tokens := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if asked = n; n <= len(tt.token) {
					answer(w, tt.token[n-1], `{"error": "invalid_client"}`, "Content-Type", "application/json")
					return
				}
				answer(w, 200, fmt.Sprintf(`{"access_token": "token-%d", "token_type": "Bearer", "expires_in": 70}`, n), "Content-Type", "application/json")
			})
			a := newAPI(t, func(n int, w http.ResponseWriter, _ *http.Request) {
				if n <= tt.waits {
					answer(w, 503, "", "Retry-After", "30")
				}
			})
			login := clientcredentials.Config{TokenURL: "http://login.internal/token", AuthStyle: oauth2.AuthStyleInHeader}
			source := login.TokenSource(context.WithValue(t.Context(), oauth2.HTTPClient, &http.Client{Transport: tokens.base()}))
			resp, err := OAuth2(a.base(), source).Do(play.MustRequest(t, tt.method, "https://api.example.com/", nil))
			if tt.sends > 0 {
				require.NoError(t, err)
				play.Finish(t, resp)
				seen := a.requests()
				assert.Equal(t, tt.last, seen[len(seen)-1].header.Get("Authorization"))
			} else {
				assert.ErrorContains(t, err, "invalid_client")
			}
			assert.Equal(t, tt.asked, asked)
			assert.Len(t, a.requests(), tt.sends)
		})
	}
}

type (
	request  = connect.Request[wrapperspb.StringValue]
	response = connect.Response[wrapperspb.StringValue]
)

// newGreeter serves procedures of Connect that fail as the function fail says,
// by the number of the call.
func newGreeter(t *testing.T, fail func(n int) error) (server *memhttp.Server, calls *int) {
	calls = new(int)
	mux := http.NewServeMux()
	for _, procedure := range []string{"/greet.v1.Greeter/Read", "/greet.v1.Greeter/Write"} {
		mux.Handle(procedure, connect.NewUnaryHandler(procedure, func(_ context.Context, r *request) (*response, error) {
			*calls++
			if err := fail(*calls); err != nil {
				return nil, err
			}
			return connect.NewResponse(wrapperspb.String("hello " + r.Msg.Value)), nil
		}, connect.WithIdempotency(connect.IdempotencyNoSideEffects)))
	}
	return memhttp.NewServer(t, memhttp.H2C, mux), calls
}

func TestConnect_WhatIsRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		procedure string
		code      connect.Code
		options   []connect.ClientOption
		calls     int
		want      connect.Code // 0: the call succeeds
	}{
		"a read that is unavailable":            {"Read", connect.CodeUnavailable, nil, 2, 0},
		"a write that is unavailable":           {"Write", connect.CodeUnavailable, nil, 1, connect.CodeUnavailable},
		"a write that is refused":               {"Write", connect.CodeResourceExhausted, nil, 2, 0},
		"a write by Connect's GET":              {"Write", connect.CodeUnavailable, []connect.ClientOption{connect.WithHTTPGet()}, 2, 0},
		"a read whose connection breaks":        {"Read", 0, nil, 2, 0},
		"a write whose connection breaks":       {"Write", 0, nil, 1, connect.CodeInternal},
		"a read that is wrong":                  {"Read", connect.CodeInvalidArgument, nil, 1, connect.CodeInvalidArgument},
		"gRPC hides its status in the trailers": {"Read", connect.CodeUnavailable, []connect.ClientOption{connect.WithGRPC()}, 1, connect.CodeUnavailable},
		"and gRPC-Web in the body":              {"Read", connect.CodeUnavailable, []connect.ClientOption{connect.WithGRPCWeb()}, 1, connect.CodeUnavailable},
	} {
		testenv.Bubble(t, name, func(t *testing.T) {
			server, calls := newGreeter(t, func(n int) error {
				if n == 1 && tt.code == 0 {
					panic(http.ErrAbortHandler)
				}
				if n == 1 {
					return connect.NewError(tt.code, fmt.Errorf("attempt %d", n))
				}
				return nil
			})
			client := Connect(server.Transport(), "/greet.v1.Greeter/Read")
			options := append(tt.options, connect.WithIdempotency(connect.IdempotencyNoSideEffects))
			call := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](client, server.URL+"/greet.v1.Greeter/"+tt.procedure, options...)
			answer, err := call.CallUnary(t.Context(), connect.NewRequest(wrapperspb.String("Ada")))
			assert.Equal(t, tt.calls, *calls)
			if tt.want != 0 {
				assert.Equal(t, tt.want, connect.CodeOf(err))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "hello Ada", answer.Msg.Value)
		})
	}
}
