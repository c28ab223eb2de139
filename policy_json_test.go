// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

func TestPolicy_JSONRoundTrip(t *testing.T) {
	for name, p := range map[string]Policy{
		"zero": {},
		"off": {
			Deadline: Off, AttemptTimeout: Off, MaxReplayBody: Off,
			Backoff: Backoff{Base: Off, ThrottleBase: Off}, Budget: Off, Breaker: Breaker{Ratio: Off},
			IdempotencyKey: Off, Gate: Gate{Enabled: Off}, RetryHeader: "off",
		},
		"full": {
			MaxAttempts: 5, Backoff: Backoff{Base: 50 * time.Millisecond, Cap: 90 * time.Second, ThrottleBase: 2 * time.Second, Jitter: DecorrelatedJitter},
			Deadline: 2 * time.Second, AttemptTimeout: 150 * time.Millisecond, MaxWait: time.Minute, MaxReplayBody: 1 << 20,
			RetryOn: []int{408}, FailOn: []int{501, 505}, Unprocessed: []int{429}, IdempotentMethods: []string{"SEARCH"},
			IdempotencyKey: On, Budget: 10,
			Breaker: Breaker{Ratio: 0.5, Window: 20 * time.Second, MinVolume: 50, OpenFor: time.Second}, Gate: Gate{Enabled: On}, RetryHeader: "Retry-Attempt",
		},
		"empty lists replace": {RetryOn: []int{}, IdempotentMethods: []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := json.Marshal(p)
			require.NoError(t, err)
			var back Policy
			require.NoError(t, json.Unmarshal(data, &back), "%s", data)
			assert.Equal(t, p, back, "%s", data)
		})
	}
	data, err := json.Marshal(Policy{Backoff: Backoff{Base: 100 * time.Millisecond}, Deadline: Off, RetryOn: []int{}, Gate: Gate{Enabled: On}, IdempotencyKey: Off})
	require.NoError(t, err)
	assert.JSONEq(t, `{"backoff":{"base":"100ms"},"deadline":"off","retry_on":[],"idempotency_key":false,"gate":{"enabled":true}}`, string(data))
}

// Editors and shells write files that aren't plain UTF-8.
func TestLoadPolicies_Encodings(t *testing.T) {
	const text = "{\n\"hosts\": {\"b\u00fccher.example\": {\"max_attempts\": 3}}}"
	_, hosts, err := LoadPolicies(strings.NewReader("\ufeff" + text))
	require.NoError(t, err, "a byte order mark")
	assert.Equal(t, map[string]Policy{"b\u00fccher.example": {MaxAttempts: 3}}, hosts)
	_, _, err = LoadPolicies(strings.NewReader("\ufeff{\n\"x\": 1}"))
	assert.ErrorContains(t, err, "line 2: x: there is no such field")
	_, _, err = LoadPolicies(strings.NewReader("\ufeff"))
	assert.EqualError(t, err, "retrip: line 1: the policy: the policy ends unexpectedly")

	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, mark := range []string{"\ufeff", ""} {
			var short, long []byte // UTF-16 and UTF-32
			for _, unit := range mark + text {
				short, long = order.AppendUint16(short, uint16(unit)), order.AppendUint32(long, uint32(unit))
			}
			for _, data := range [][]byte{short, long} {
				_, _, err := LoadPolicies(bytes.NewReader(data))
				assert.EqualError(t, err, "retrip: line 1: the policy: it must be UTF-8, not UTF-16 or UTF-32", "%q", data[:8])
			}
		}
	}

	_, _, err = LoadPolicies(strings.NewReader(strings.ReplaceAll(text, "\u00fc", "\xfc")))
	assert.ErrorContains(t, err, "line 2: hosts.b\ufffdcher.example: it contains U+FFFD, which stands for what isn't UTF-8")
	_, _, err = LoadPolicies(strings.NewReader(`{"hosts": {"a\ud800.example": {}}}`))
	assert.ErrorContains(t, err, "it contains U+FFFD")
	_, _, err = LoadPolicies(strings.NewReader(`{"hosts": {"a\u202e.example": {}}}`))
	assert.EqualError(t, err, `retrip: line 1: hosts.a\u202e.example: it contains U+202E, which can't be seen`)
}

func TestLoadPolicies_NamesLineFieldAndValue(t *testing.T) {
	for input, want := range map[string]string{
		"{\n\"bsae\": 1}": "line 2: bsae: there is no such field; the fields are max_attempts, backoff",
		`{"hosts": {"a.example.com": {}, "A.example.com": {}}}`:                                             "hosts.A.example.com: another pattern names the same host, spelled differently",
		`{"hosts": {"http://a": {}}}`:                                                                       "hosts.http://a: a host pattern must not have a scheme",
		`{"hosts": {"a": {"hosts": {}}}}`:                                                                   "hosts.a.hosts: there is no such field",
		`{"hosts": {"a": {"max_attempts": -5}}}`:                                                            "line 1: hosts.a.max_attempts: it is -5: it must be positive",
		`{"max_attempts": "off"}`:                                                                           `line 1: max_attempts: it is "off": use 1 for no retries`,
		`{"max_wait": "off"}`:                                                                               `max_wait: it is "off": use 1ns to refuse every wait`,
		`{"backoff": {"cap": "off"}}`:                                                                       `backoff.cap: it is "off": use a long duration, such as 24h`,
		`{"breaker": {"min_volume": "off"}}`:                                                                `breaker.min_volume: it is "off": set ratio to "off" for no breaker`,
		`{"retry_on": [200, 300]}`:                                                                          "retry_on: it contains 200: a status must be 400 to 599\nretrip: line 1: retry_on: it contains 300: a",
		`{"backoff": {"base": "1m"}}`:                                                                       "line 1: backoff.base: it is 1m0s: it must not be more than backoff.cap, which is 10s",
		"{\"hosts\": {\n\"a\": {},\n\"b\": {\n\"backoff\": {\"cap\": \"1ms\"}}}}":                           "line 4: hosts.b.backoff.cap: backoff.base is 100ms: it must not be more than backoff.cap, which is 1ms",
		"{\"fail_on\": [500],\n\"hosts\": {\n\"A\": {\"retry_on\": [500]}}}":                                "line 3: hosts.A.retry_on: fail_on is 500: retry_on lists this status too",
		"{\"hosts\": {\"a\": {\n\"budget\": {\"size\": 5}}}}":                                               `line 2: hosts.a.budget: it is an object: it must be a positive number, or "off", such as "budget": 5`,
		`{"retry_header": "A B"}`:                                                                           `line 1: retry_header: it is "A B": it must be the name of a header, or "off"`,
		"{\"breaker\": {\n\"min_volume\": 2,\n\"ratio\": 5,\n\"x\": 1}}":                                    `line 3: breaker.ratio: it is 5: it must be 0.01 to 1, 0 to inherit or "off"`,
		"{\"idempotent_methods\": [\n\"A\",\n\"B C\"\n],\n\"retry_on\": []}":                                `line 3: idempotent_methods: it contains "B C": it must be an HTTP method`,
		"{\"dialects\": [\n\"azure\",\n\"azzure\"\n]}":                                                      `line 3: dialects: it contains "azzure": it must be one of ["`,
		"{\"unprocessed\": [\n501],\n\"hosts\": {\"a\": {\n\"fail_on\": [501\n]\n}}}":                       "line 4: hosts.a.fail_on: it is 501: unprocessed lists this status too",
		"{\"fail_on\": [501],\n\"hosts\": {\"a\": {\"max_attempts\": 2,\n\"unprocessed\": [429,\n501\n]}}}": "line 4: hosts.a.unprocessed: fail_on is 501: unprocessed lists this status too",
		"{\"hosts\": {\"a\": {\"backoff\": {\"cap\": \"1s\"}}},\n\"backoff\": {\n\"base\": \"1m\"}}":        "line 3: backoff.base: it is 1m0s: it must not be more than backoff.cap, which is 10s",
	} {
		_, _, err := LoadPolicies(strings.NewReader(input))
		if assert.Error(t, err, input) {
			assert.Contains(t, err.Error(), want, input)
			assert.Contains(t, err.Error(), "retrip: ", input)
		}
	}
}

// Where a value can't be the whole of an object or a list, the error shows one that works,
// first of all to whoever wants to switch it off.
func TestLoadPolicies_ShowsAnObjectOrAListThatWorks(t *testing.T) {
	examples := map[string]string{"backoff": `{"base": "off"}`, "breaker": `{"ratio": "off"}`, "gate": `{"enabled": true}`}
	for field := range reflect.TypeFor[Policy]().Fields() {
		var want string
		name, wrong := field.Tag.Get("json"), []string{`"off"`, "true", "false", "0", "null"}
		switch field.Type.Kind() {
		case reflect.Struct:
			want, wrong = "an object, such as "+examples[name], append(wrong, "[]")
			_, _, err := LoadPolicies(strings.NewReader(`{"` + name + `": ` + examples[name] + `}`))
			assert.NoError(t, err, name)
		case reflect.Slice:
			want, wrong = "a list, or [] for none", append(wrong, "{}")
		default:
			continue
		}
		for _, value := range wrong {
			_, _, err := LoadPolicies(strings.NewReader("{\"hosts\": {\"a\": {\n\"" + name + "\": " + value + "}}}"))
			shown := strings.NewReplacer("[]", "a list", "{}", "an object").Replace(value)
			assert.EqualError(t, err, "retrip: line 2: hosts.a."+name+": it is "+shown+": it must be "+want)
		}
	}
}

// The policies in the docs are valid.
func TestLoadPolicies_ExamplesOfTheDocs(t *testing.T) {
	files, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	examples := 0
	for _, file := range append(files, "README.md") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			examples++
			policy, hosts, err := LoadPolicies(strings.NewReader(match[1]))
			if assert.NoError(t, err, "%s", file) {
				assert.Empty(t, (&Transport{Policy: policy, Hosts: hosts}).Advice(), "%s", file)
			}
		}
	}
	assert.NotZero(t, examples)
}

// An error stays short and on its lines, whatever the input holds.
func TestLoadPolicies_ShortErrors(t *testing.T) {
	long := strings.Repeat("x", 1<<18)
	many := strings.Repeat("1, ", 1<<16) + "1"
	for _, input := range []string{
		`{"` + long + `": 1}`, `{"` + long + `": 1, "` + long + `": 1}`, `{"retry_header": "` + long + ` "}`, `{"deadline": "` + long + `"}`, `{"retry_on": ["` + long + `"]}`,
		`{"max_attempts": ` + strings.Repeat("9", 1<<18) + `}`, `{"budget": ` + strings.Repeat("9", 1<<18) + `}`, `{"breaker": {"` + long + `": 1}}`,
		`{"idempotent_methods": ["` + long + ` "]}`, `{"dialects": ["` + long + `"]}`, `{"backoff": {"jitter": "` + long + `"}}`, `{"gate": "` + long + `"}`,
		`{"hosts": {"` + long + `/": {}}}`, `{"hosts": {".` + long + `": {}}}`, `{"hosts": {"a:` + long + `": {}}}`, `{"hosts": {"[` + long + `]": {}}}`, `{"hosts": {"*` + long + `": {}}}`,
		`{"hosts": {"` + long + `": {"` + long + `": 1}}}`, `{"hosts": {"` + long + `": {"backoff": {"base": "1h"}}}}`, `{"hosts": "` + long + `"}`, `"` + long + `"`, `{"a\nb\u0000": 1}`,
		`{"retry_on": [` + many + `]}`, `{"hosts": {"a": {"idempotent_methods": [` + many + `]}}}`, `{"dialects": [` + many + `]}`,
	} {
		_, _, err := LoadPolicies(strings.NewReader(input))
		if assert.Error(t, err, "%.60s", input) {
			assert.Less(t, len(err.Error()), 8000, "%.60s", input)
			for line := range strings.SplitSeq(err.Error(), "\n") {
				assert.True(t, strings.HasPrefix(line, "retrip: line 1: "), "%.60s: %.80q", input, line)
			}
		}
	}
}

func TestPolicy_UnmarshalMistakeLeavesUnchanged(t *testing.T) {
	p := Policy{MaxAttempts: 7}
	assert.ErrorContains(t, json.Unmarshal([]byte(`{"gate": {"enabled": true}, "max_attempts": "off"}`), &p), "use 1 for no retries")
	assert.ErrorContains(t, p.UnmarshalJSON([]byte(`{"gate": {"enabled": true}} {}`)), "there is more data after the policy")
	assert.ErrorContains(t, p.UnmarshalJSON([]byte(`{"hosts": {}}`)), "hosts: there is no such field")
	assert.Equal(t, Policy{MaxAttempts: 7}, p)
	part := struct{ Retries Policy }{}
	assert.ErrorContains(t, json.Unmarshal([]byte("{\n\"retries\": {\n\"deadline\": 5}}"), &part), "retrip: line 2 of the policy: deadline: it is 5")
}

func FuzzLoadPolicies(f *testing.F) {
	f.Add(`{"max_attempts":3,"backoff":{"base":"50ms","jitter":"full"},"hosts":{"*.example.com":{"retry_on":[408]}}}`)
	f.Add(`{"budget":"off"}`)
	f.Fuzz(func(t *testing.T, input string) {
		policy, hosts, err := LoadPolicies(strings.NewReader(input))
		if err != nil {
			return
		}
		tr := Transport{Policy: policy, Hosts: hosts}
		_, err = compile(tr.Policy, tr.Hosts)
		require.NoError(t, err, "loaded policies are valid")
		data, err := json.Marshal(policy)
		require.NoError(t, err)
		var back Policy
		require.NoError(t, json.Unmarshal(data, &back))
		require.Equal(t, policy, back)
	})
}

// long returns a template with each part in «» repeated n times. In it, # is the number
// of the repetition, and the comma after the last one is left out.
func long(template string, n int) string {
	return regexp.MustCompile(`(?s)«.*?»`).ReplaceAllStringFunc(template, func(part string) string {
		part = strings.Trim(part, "«»")
		var b strings.Builder
		for i := range n {
			b.WriteString(strings.ReplaceAll(part, "#", strconv.Itoa(i)))
		}
		return strings.TrimSuffix(b.String(), ",")
	})
}

// Policies may come from a file that somebody else writes. One of twice the size costs
// less than three times the time, valid or not, and the error names the first mistakes.
//
//retrip:promise P12
func TestLoadPolicies_Growth(t *testing.T) {
	for name, template := range map[string]string{
		"statuses in three lists": `{"retry_on": [«500,»], "unprocessed": [«429,»], "fail_on": [«400,»]}`,
		"wrong statuses":          `{"retry_on": [«1,»]}`,
		"methods":                 `{"idempotent_methods": [«"M#",»]}`,
		"dialects":                `{"dialects": [«"openai",»], "idempotency_key": true}`,
		"a long name":             `{"«a.»": 1}`,
		"a long number":           `{"max_attempts": 1«0»}`,
		"a long duration":         `{"deadline": "«1ns»"}`,
		"a long header":           `{"retry_header": "«x-»"}`,
		"spaces":                  "«\n»{« \n»}«\n»",
		"lists in lists":          `{"retry_on": «[»`,
		"objects in objects":      `«{"hosts":»`,
		"one member many times":   `{«"max_attempts": 1,»}`,
		"hosts":                   `{"hosts": {«"h#.example": {},»}}`,
		"wrong hosts":             `{"hosts": {«"h #": {},»}}`,
		"suffixes":                `{"hosts": {«"*.h#.example": {},»}}`,
		"a long host":             `{"hosts": {"*«.a»": {}}}`,
		"hosts that collide":      `{"hosts": {«` + strings.Repeat("\n", 1000) + `"h#": {"retry_on": [404], "fail_on": [404]},»}}`,
		"hosts with lists":        `{"hosts": {«"h#": {"retry_on": [404], "dialects": ["azure"], "idempotent_methods": ["POST"]},»}}`,
		"hosts and statuses":      `{"retry_on": [«404,»], "hosts": {«"h#": {},»}}`,
		"hosts and POSTs":         `{"idempotent_methods": [«"M#",», "POST"], "hosts": {«"h#": {"dialects": ["openai"]},»}}`,
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Growth(t, 1000, func(n int) string { return long(template, n) }, func(input string) {
				policy, hosts, err := LoadPolicies(strings.NewReader(input))
				if err != nil {
					assert.Less(t, len(err.Error()), 20_000)
					return
				}
				tr := &Transport{Base: testenv.Status(200), Policy: policy, Hosts: hosts}
				assert.NoError(t, tr.Validate())
				assert.Less(t, len(fmt.Sprint(tr.Advice())), 20_000)
				req, err := http.NewRequest(http.MethodPost, "http://h1.example", nil)
				require.NoError(t, err)
				try(tr, req)
			})
		})
	}
}
