// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"net/http"
	"slices"
	"time"

	"github.com/retrip/retrip"
)

// Plan is the script of one world, drawn before it begins. All that happens
// follows from it: it holds every delay, fault and choice. The zero value of
// each part is the dullest one, and shrinking goes towards it.
type Plan struct {
	Salt       uint32 // of the draws of the library and of the jitter of the network
	H2C        bool   // sites without TLS speak HTTP/2, and no client speaks HTTP/1
	Sites      []Site
	Transports []Transport
	Callers    []Caller
	Operations []Operation
	Store      []Answer // of the store of the fleet, in turn; none: the account is in memory
}

// Site is a server.
type Site struct {
	TLS     bool
	H1      bool          // it speaks only HTTP/1
	Streams int           // most at a time on an HTTP/2 connection; 0: the default
	Latency time.Duration // one way
	Conns   []ConnFault   // of its first connections
	Outages []Outage
	Shed    int // limit of its shed.Handler; 0: it has none
	Limit   int // requests per second, beyond which it answers with 429; 0: none
	Word    int // Retry-After of these, in seconds; negative: none
}

// ConnFault is what the network does to one connection.
type ConnFault struct {
	Dial  time.Duration // how long it takes to connect
	Fails bool          // the dial fails after that
	Kind  FaultKind
	Down  bool // counts the bytes from the server, not those from the client
	After int  // bytes
	Slow  time.Duration
}

// FaultKind is a kind of fault of a connection.
type FaultKind uint8

// The kinds of faults.
const (
	Sound     FaultKind = iota
	Resets              // both ends get a reset
	HalfClose           // the direction ends
	Freezes             // nothing gets through in either direction
	Stalls              // the direction waits for ConnFault.Slow, once
	faultKinds
)

// Outage is a time during which a site is in trouble.
type Outage struct {
	From, For time.Duration
	Kind      OutageKind
	Word      int // Retry-After of its 503s, in seconds; negative: none
}

// OutageKind is a kind of outage.
type OutageKind uint8

// The kinds of outages.
const (
	Unavailable OutageKind = iota // each request gets a 503, unprocessed
	Throttling                    // each request gets a 429, unprocessed
	Refusing                      // no connection, and those that exist are reset
	Silent                        // connections freeze
	Restart                       // the server shuts down gracefully (with GOAWAY), and a new one starts
	Crash                         // the server closes all connections, and a new one starts
	outageKinds
)

// Transport is a client: a retrip.Transport and the http.Client on it.
type Transport struct {
	Default  Policy
	Hosts    map[string]Policy // by pattern
	Next     []Policies        // for SetPolicies
	Fleet    bool
	Metrics  int  // number of the Metrics; transports may share one
	Timed    bool // Metrics.Durations
	Logger   bool
	Bare     bool // it has no hooks, so that first attempts are plain
	Wrapped  bool // the base isn't an *http.Transport
	Hostile  bool // the wrapped base returns what nobody expects
	DialTLS  bool // the base has a DialTLSContext
	Verifies bool // the caller's own VerifyConnection accepts the server
	MaxConns int
	Client   time.Duration // http.Client.Timeout
}

// Policies is what SetPolicies gets.
type Policies struct {
	Default Policy
	Hosts   map[string]Policy
}

// Policy is a retrip.Policy and the kinds of its functions.
type Policy struct {
	retrip.Policy
	Classify   Classify
	Idempotent Idempotent
	Keyed      bool // Gate.Key
}

// Classify is a kind of Policy.Classify.
type Classify uint8

// The kinds of Classify.
const (
	NoClassify   Classify = iota
	RetriesTeas           // 418 is Retryable
	FinalTeas             // 418 and 503 with World-Final are Final
	PeeksAtStart          // peeks at the body, and a body that begins with "!" is Retryable
	classifies
)

// Idempotent is a kind of Policy.Idempotent.
type Idempotent uint8

// The kinds of Idempotent.
const (
	NoIdempotent Idempotent = iota
	NeverIdempotent
	ByHeader // the header World-Safe says so
	idempotents
)

// Caller makes calls, one after the other.
type Caller struct {
	Start     time.Duration
	Transport int
	Calls     []Call
	Shared    time.Duration // end of a context that its calls share; 0: none
}

// Call is one request to a client.
type Call struct {
	Gap    time.Duration // before it
	Site   int
	Method string
	Key    bool // Idempotency-Key
	Safe   bool // World-Safe
	Body   BodyKind
	Size   int           // of the body
	Drip   time.Duration // of each Read of the body
	Policy *Policy
	Hooks  bool // WithTrace
	Panics Panic
	Hints  Hints // what the Got1xxResponse of an httptrace does
	Spells int   // how the host is spelled
	Behalf bool  // made on behalf of an incoming retry

	Deadline time.Duration // of the context; 0: none
	Cancel   time.Duration // after which it is canceled; 0: never; negative: before it begins
	Cause    bool          // the cancellation has a cause
	Legacy   bool          // it is canceled by Request.Cancel
	Direct   bool          // RoundTrip without an http.Client

	Read   Reading
	Pace   time.Duration // between reads
	Script []Step        // of the server, by arrival; then it answers at once
	Range  bool          // the call asks for a part
}

// Panic is a hook that panics.
type Panic uint8

// The hooks that panic.
const (
	NoPanic Panic = iota
	AtAttempt
	AtRetry
	AtGiveUp
	AtDone
	panicKinds
)

// Hints is what a Got1xxResponse does.
type Hints uint8

// What a Got1xxResponse does.
const (
	NoHints Hints = iota
	AcceptsHints
	RefusesHints
	hintKinds
)

// BodyKind is a kind of request body.
type BodyKind uint8

// The kinds of request bodies.
const (
	NoBody    BodyKind = iota
	Bytes              // with GetBody, as http.NewRequest makes it
	Stream             // readable once
	Section            // an io.SectionReader
	OwnGet             // a stream with a GetBody of the caller's
	FailsGet           // whose GetBody fails
	FailsRead          // the body fails halfway
	TooShort           // it is shorter than ContentLength says
	bodyKinds
)

// Reading is how a caller reads the response.
type Reading uint8

// The ways to read.
const (
	ReadsAll Reading = iota
	ReadsPart
	ClosesAtOnce
	ClosesLater // from another goroutine, during a Read
	readings
)

// Step is what the server does with one arrival of a request.
type Step struct {
	Kind   StepKind
	Status int           // 0: 200
	Delay  time.Duration // before the response
	Word   Word          // Retry-After and the like
	Wait   int           // seconds of Word
	Forbid bool          // X-Should-Retry: false
	Final  bool          // World-Final
	Early  bool          // responds without reading the request's body
	Length int           // of the response's body
	Plain  bool          // no Content-Length
	Cut    int           // the body breaks after so many bytes; 0: it doesn't
	Stall  time.Duration // pause in the middle of the body
	Bump   bool          // the file has changed
	Ranges RangeKind
	Close  bool // Connection: close
}

// StepKind is a kind of Step.
type StepKind uint8

// The kinds of steps.
const (
	Answers    StepKind = iota
	Hangs               // no response until the client goes
	CutBefore           // the connection ends before the request is processed
	CutAfter            // and after that
	Redirects           // with 307
	SendsHints          // 103 before the response
	Upgrades            // with 101, over HTTP/1
	stepKinds
)

// Word is a form in which a server asks for a wait.
type Word uint8

// The forms.
const (
	Silence   Word = iota
	Seconds        // Retry-After: 2
	Date           // as an IMF-fixdate, with a Date
	DateSkew       // whose clock is wrong, and so is Date
	OldDate        // in the format of RFC 850
	Two            // two lines, of which the longest counts
	Garbage        // nothing that counts
	Millis         // Retry-After-Ms, which counts if the policy knows the dialect
	RateLimit      // RateLimit fields, likewise
	Reset          // X-RateLimit-Reset and the like, likewise
	Services       // the fields of several services, likewise
	words
)

// RangeKind is how a server responds to a request for a part.
type RangeKind uint8

// The kinds of responses to requests for a part.
const (
	RightRange    RangeKind = iota
	IgnoresRange            // 200 with everything
	WrongRange              // a 206 with another Content-Range
	WeakTag                 // the ETag is weak
	NoTag                   // no ETag, but Last-Modified
	NoValidator             // neither
	ShortRange              // a 206 with only half of what was asked
	EarlyRange              // a 206 that begins earlier
	ignoreIfRange           // a 206 of the current version, whatever If-Range says
	rangeKinds
)

// Operation is what an operator does.
type Operation struct {
	At        time.Duration
	Transport int
	Kind      OperationKind
	Site      int
	For       time.Duration
	Whole     bool // forbids all requests to the site, not the retries of the Transport
	Names     int  // of hosts that don't exist
}

// OperationKind is a kind of Operation.
type OperationKind uint8

// The kinds of operations.
const (
	Looks OperationKind = iota // HostStates and HostState
	Gathers
	SwapsPolicies
	ClosesIdle
	Reloads // the policies through JSON, as SetPolicies gets them
	ClosesFleet
	Forbids // by hand
	Undoes  // what is forbidden by hand
	Forgets // a host
	Meets   // many hosts that don't exist
	Mistakes
	operationKinds
)

// Answer is how the store of the fleet answers once.
type Answer struct {
	After time.Duration
	Fails bool
	Lies  Lie
	Hangs bool // until its context ends
	Panic bool
}

// Lie is an impossible level of an account.
type Lie uint8

// The lies.
const (
	Truth Lie = iota
	Negative
	TooMuch
	NotANumber
	Infinite
	lies
)

// patterns are the hosts that policies may name. Site n is s<n>.test.
var patterns = []string{"s0.test", "*.test", "s1.test", "s2.test"}

// planOf returns the world that t stands for.
func planOf(t *tape) Plan {
	d := draws{tape: t, theme: theme(t.n(int(themes) + 2))}
	p := Plan{Salt: uint32(t.upTo(1 << 32)), H2C: d.odds(25)}
	p.Sites = append(p.Sites, d.site())
	d.list(2, 40, func() { p.Sites = append(p.Sites, d.site()) })
	p.Transports = append(p.Transports, d.transport())
	apart := d.odds(30)
	d.list(2, 25, func() {
		tr := d.transport()
		if apart {
			tr.Metrics = len(p.Transports)
		}
		p.Transports = append(p.Transports, tr)
	})
	d.list(6, 80, func() { p.Callers = append(p.Callers, d.caller(&p)) })
	d.list(6, 50, func() {
		p.Operations = append(p.Operations, Operation{At: d.instant(8 * time.Second), Transport: d.n(len(p.Transports)), Kind: OperationKind(d.n(int(operationKinds))), Site: d.n(len(p.Sites)), For: d.log(8 * time.Second), Whole: d.odds(50), Names: d.names()})
	})
	d.maybe(60, func() {
		d.list(12, 90, func() { p.Store = append(p.Store, d.answer()) })
	})
	return p
}

// draws draws the parts of a Plan. The first of several choices is the dullest.
type draws struct {
	*tape
	theme theme
}

// theme says of what a world has more than others.
type theme uint8

const (
	anything  theme = iota
	downloads       // that break
	hedging         // many quick requests, of which some are late
	limits          // many requests to sites that limit their rate
	panics          // of hooks
	peeks           // by Classify, at bodies that come slowly
	breakers        // that open soon, and callers who go
	themes
)

func (d draws) site() Site {
	s := Site{
		TLS: d.odds(20), H1: d.odds(40), Streams: pick(d.tape, 0, 0, 0, 1, 3),
		Latency: time.Microsecond + d.log(20*time.Millisecond),
	}
	d.list(6, 40, func() {
		c := ConnFault{Dial: d.log(2 * time.Second), Fails: d.odds(20)}
		if d.odds(60) {
			c.Kind, c.Down, c.After, c.Slow = FaultKind(d.n(int(faultKinds))), d.odds(50), d.n(3000)>>d.n(8), d.log(10*time.Second)
		}
		s.Conns = append(s.Conns, c)
	})
	d.list(3, 35, func() {
		s.Outages = append(s.Outages, Outage{From: d.instant(6 * time.Second), For: d.log(8 * time.Second), Kind: OutageKind(d.n(int(outageKinds))), Word: d.n(4) - 1})
	})
	if d.odds(15) {
		s.Shed = 1 + d.n(3)
	}
	if d.theme == limits || d.odds(4) {
		s.Limit, s.Word = 1+d.n(8), d.n(3)-1
	}
	return s
}

func (d draws) transport() Transport {
	tr := Transport{Default: d.policy(60), Verifies: d.odds(20), Fleet: d.odds(25), Timed: d.odds(15), Logger: d.odds(50), Wrapped: d.odds(20), Hostile: d.odds(25), DialTLS: d.odds(10)}
	switch d.theme {
	case downloads:
		tr.Default.Resume, tr.Default.MaxAttempts = time.Minute, 1+d.n(4)
		tr.Default.Classify = NoClassify
	case hedging:
		tr.Default.Hedge = 0.05 + float64(d.n(16))/100
		tr.Default.Budget, tr.Default.Breaker.Ratio, tr.Default.Gate.Enabled = retrip.Budget{}, retrip.Off, retrip.Off
		if d.odds(30) {
			tr.Default.HedgeWrites = retrip.On
		}
	case limits:
		tr.Default.Gate.Enabled = retrip.On
	case peeks:
		tr.Default.Classify = PeeksAtStart
	case breakers:
		tr.Default.Breaker = retrip.Breaker{Ratio: 0.5, MinVolume: 1, OpenFor: time.Second + d.log(8*time.Second)}
	}
	tr.Hosts = d.hosts()
	d.list(3, 35, func() { tr.Next = append(tr.Next, Policies{d.policy(60), d.hosts()}) })
	if d.odds(15) {
		tr.MaxConns = 1 + d.n(2)
	}
	if d.odds(20) {
		tr.Client = d.log(8 * time.Second)
	}
	tr.Bare = d.odds(8)
	return tr
}

func (d draws) hosts() map[string]Policy {
	var hosts map[string]Policy
	d.list(3, 35, func() {
		if hosts == nil {
			hosts = map[string]Policy{}
		}
		hosts[pick(d.tape, patterns...)] = d.policy(20)
	})
	return hosts
}

// policy returns a valid policy, in which each part is set with a likelihood of
// percent/2.
func (d draws) policy(percent int) Policy {
	var p Policy
	maybe := func(set func()) { d.maybe(percent/2, set) }
	maybe(func() { p.MaxAttempts = 1 + d.n(6) })
	maybe(func() { p.Backoff.Base = pick(d.tape, retrip.Off, time.Millisecond, d.log(time.Second)) })
	maybe(func() { p.Backoff.Cap = time.Second + d.log(20*time.Second) })
	maybe(func() { p.Backoff.ThrottleBase = pick(d.tape, retrip.Off, d.log(3*time.Second)) })
	maybe(func() { p.Backoff.Jitter = retrip.Jitter(1 + d.n(4)) })
	maybe(func() { p.Deadline = d.log(10 * time.Second) })
	maybe(func() { p.AttemptTimeout = 30*time.Millisecond + d.log(3*time.Second) })
	maybe(func() { p.MaxWait = pick(d.tape, time.Nanosecond, d.log(10*time.Second), time.Minute, 24*time.Hour) })
	maybe(func() { p.WholeBody = pick(d.tape, retrip.Off, int64(1+d.n(5000)), 64<<10) })
	maybe(func() { p.BodyIdleTimeout = 50*time.Millisecond + d.log(5*time.Second) })
	maybe(func() { p.Resume = pick(d.tape, time.Minute, 20*time.Millisecond+d.log(20*time.Second)) })
	maybe(func() { p.MaxReplayBody = pick(d.tape, retrip.Off, int64(1+d.n(2000))) })
	maybe(func() { p.MaxSends = 1 + d.n(4) })
	maybe(func() { p.RetryOn = pick(d.tape, []int{}, []int{404, 409}, []int{418}) })
	maybe(func() { p.FailOn = pick(d.tape, []int{}, []int{500}, []int{502, 504}) })
	maybe(func() { p.Unprocessed = pick(d.tape, []int{}, []int{429}, []int{429, 503}, []int{409}) })
	maybe(func() { p.IdempotentMethods = pick(d.tape, []string{}, []string{"POST"}, []string{"REPORT"}) })
	maybe(func() { p.IdempotencyKey = pick[retrip.Switch](d.tape, retrip.Off, retrip.On) })
	maybe(func() {
		p.Dialects = pick(d.tape, []string{}, []string{"retry-after-ms"}, []string{"ratelimit"}, []string{"should-retry"}, []string{"anthropic", "azure"}, []string{"openai", "github"}, []string{"shopify", "discord", "stripe"}, []string{"x-ratelimit-reset", "x-ms-retry-after-ms", "x-amz-retry-after"})
	})
	maybe(func() { p.RetryHeader = pick(d.tape, "off", "World-Retry") })
	maybe(func() {
		p.Budget = pick(d.tape, retrip.Budget{Size: float64(1 + d.n(40))}, retrip.Unlimited, retrip.Budget{Size: 10, Shared: float64(1 + d.n(20))}, retrip.Budget{Size: 1})
	})
	maybe(func() { p.FleetBudget = pick(d.tape, retrip.Off, float64(1+d.n(100))) })
	maybe(func() {
		p.Breaker = pick(d.tape, retrip.Breaker{Ratio: retrip.Off}, retrip.Breaker{Ratio: 0.5, MinVolume: 1 + d.n(6), OpenFor: d.log(4 * time.Second), Window: d.log(20 * time.Second)})
	})
	maybe(func() { p.Gate.Enabled = pick[retrip.Switch](d.tape, retrip.Off, retrip.On) })
	maybe(func() { p.Hedge = pick(d.tape, retrip.Off, 0.01+float64(d.n(19))/100) })
	maybe(func() { p.HedgeWrites = pick[retrip.Switch](d.tape, retrip.Off, retrip.On) })
	maybe(func() { p.Keyed = true })
	maybe(func() { p.Classify = Classify(d.n(int(classifies))) })
	maybe(func() { p.Idempotent = Idempotent(d.n(int(idempotents))) })
	if d.odds(4) {
		// A long budget and no wait: many attempts.
		p.Budget, p.MaxAttempts = retrip.Unlimited, 8
	}
	return p
}

func (d draws) caller(p *Plan) Caller {
	c := Caller{Start: d.log(4 * time.Second), Transport: d.n(len(p.Transports))}
	site := d.n(len(p.Sites))
	most := 4
	more := 85
	if d.theme == hedging || d.theme == limits {
		most, more = 40, 97
	} else if d.odds(5) {
		most = 16
	}
	d.list(most, more, func() {
		call := d.call()
		if d.theme == hedging || d.theme == limits {
			call.Gap /= 16
		}
		call.Site = site
		if d.odds(20) {
			call.Site = d.n(len(p.Sites))
		}
		c.Calls = append(c.Calls, call)
	})
	if d.odds(8) {
		c.Shared = d.log(12 * time.Second)
	}
	return c
}

func (d draws) call() Call {
	c := Call{
		Gap:    d.log(2 * time.Second),
		Method: pick(d.tape, http.MethodGet, http.MethodGet, http.MethodGet, http.MethodPost, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodHead, "QUERY", "REPORT", http.MethodOptions),
		Key:    d.odds(8), Safe: d.odds(30), Hooks: d.odds(10), Direct: d.odds(30),
	}
	switch {
	case d.theme == downloads && d.odds(80):
		c.Method = http.MethodGet
	case d.theme == hedging && d.odds(80):
		c.Method = pick(d.tape, http.MethodGet, http.MethodPut)
	case d.theme == panics && d.odds(50):
		c.Panics = Panic(d.n(int(panicKinds)))
	}
	if d.odds(10) {
		c.Hints = Hints(d.n(int(hintKinds)))
	}
	c.Behalf = d.odds(5)
	if d.odds(10) {
		c.Spells = d.n(4)
	}
	if hasBody := []string{http.MethodPost, http.MethodPut, "QUERY", "REPORT"}; slices.Contains(hasBody, c.Method) {
		c.Body, c.Size = BodyKind(d.n(int(bodyKinds))), 1+d.n(3000)
		if d.odds(10) {
			c.Size = d.n(200 << 10)
		} else if d.odds(10) {
			c.Drip = d.log(100 * time.Millisecond)
		}
	}
	if d.odds(12) {
		p := d.policy(15)
		// The account, breaker and gate belong to the host.
		p.Budget, p.Breaker, p.Gate, p.Keyed, p.FleetBudget = retrip.Budget{}, retrip.Breaker{}, retrip.Gate{}, false, 0
		if d.odds(40) {
			p.Gate.Enabled = retrip.Off
		}
		if d.odds(40) {
			p.Breaker.Ratio = retrip.Off
		}
		if d.odds(40) {
			p.Budget = retrip.Unlimited
		}
		c.Policy = &p
	}
	if d.odds(25) {
		c.Deadline = d.log(10 * time.Second)
	}
	if d.odds(15) {
		c.Cancel, c.Cause, c.Legacy = d.log(5*time.Second), d.odds(40), d.odds(20)
		if d.odds(10) {
			c.Cancel = -1
		}
	}
	if d.odds(25) {
		c.Read, c.Pace = Reading(d.n(int(readings))), d.log(300*time.Millisecond)
	}
	if c.Read == ClosesLater {
		c.Drip = 0 // net/http's Close waits for a mutex until the request body is sent
	}
	c.Range = c.Method == http.MethodGet && d.odds(8)
	if (d.theme == hedging || d.theme == limits) && d.odds(80) {
		if d.odds(15) {
			c.Script = append(c.Script, Step{Delay: d.log(time.Second), Length: 10})
		}
		c.Body, c.Deadline, c.Cancel, c.Policy = c.Body%3, 0, 0, nil
		return c
	}
	if d.theme == breakers && d.odds(80) {
		c.Gap, c.Policy = d.log(2*time.Second), nil
		c.Script = append(c.Script, Step{Status: pick(d.tape, 503, 500, 0), Delay: d.log(time.Second)})
		if d.odds(50) {
			c.Cancel = d.log(time.Second)
		}
		return c
	}
	d.list(6, 75, func() { c.Script = append(c.Script, d.step()) })
	return c
}

func (d draws) step() Step {
	if d.theme == downloads && d.odds(70) {
		s := Step{Length: 100 + d.n(30<<10), Plain: d.odds(4), Bump: d.odds(10), Ranges: RangeKind(d.n(3 * int(rangeKinds)))}
		if s.Ranges >= rangeKinds {
			s.Ranges = RightRange
		}
		if d.odds(70) {
			s.Cut = 1 + d.n(s.Length)
		}
		if d.odds(20) {
			s.Stall = d.log(8 * time.Second)
		}
		return s
	}
	s := Step{
		Kind:   pick(d.tape, Answers, Answers, Answers, Answers, Answers, Answers, Answers, Answers, Hangs, CutBefore, CutAfter, Redirects, SendsHints, Upgrades),
		Status: pick(d.tape, 0, 503, 503, 429, 429, 500, 502, 504, 404, 409, 418, 201, 304, 400),
		Length: d.n(600),
	}
	if d.odds(30) {
		s.Delay = d.log(3 * time.Second)
	}
	if d.odds(45) {
		s.Word, s.Wait = Word(d.n(int(words))), pick(d.tape, 0, 1, 1, 2, 3, 5, 11, 31, 100000)
	}
	if d.theme == peeks && d.odds(60) {
		return Step{Length: 1 + d.n(300), Plain: d.odds(60), Stall: d.log(time.Second), Delay: d.log(time.Second)}
	}
	s.Forbid, s.Final, s.Early, s.Plain, s.Close = d.odds(4), d.odds(5), d.odds(8), d.odds(15), d.odds(5)
	if d.odds(20) {
		s.Length = d.n(20 << 10)
	}
	if d.odds(3) {
		s.Length = d.n(600 << 10)
	}
	if d.odds(20) {
		s.Cut = 1 + d.n(s.Length+1)
	}
	if d.odds(12) {
		s.Stall = d.log(8 * time.Second)
	}
	s.Bump = d.odds(10)
	if d.odds(25) {
		s.Ranges = RangeKind(d.n(int(rangeKinds)))
	}
	return s
}

// names returns a number of hosts, seldom more than may have a state.
func (d draws) names() int {
	if d.odds(3) {
		return 6000
	}
	return 1 + d.n(40)
}

func (d draws) answer() Answer {
	a := Answer{After: d.log(time.Second)}
	switch d.n(12) {
	case 8:
		a.Fails = true
	case 9:
		a.Lies = 1 + Lie(d.n(int(lies)-1))
	case 10:
		a.Hangs = true
	case 11:
		a.Panic = d.odds(50)
	}
	return a
}
