// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
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
	Shed    int  // limit of its shed.Handler; 0: it has none
	Limit   int  // requests per second, beyond which it answers with 429; 0: none
	Word    int  // Retry-After of these, in seconds; negative: none
	Unsized bool // it doesn't say how long a file is of which it sends a part
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

const (
	Sound     FaultKind = iota
	Resets              // both ends get a reset
	HalfClose           // the direction ends
	Freezes             // nothing gets through in either direction
	Stalls              // the direction waits for ConnFault.Slow, once
	Departs             // as a server of HTTP/2 without TLS, it goes away at the first request
	faultKinds
)

// Outage is a time during which a site is in trouble.
type Outage struct {
	From, For time.Duration
	Kind      OutageKind
	Word      int // Retry-After of its 503s, in seconds; negative: none
	Part      int // of the site that is Unavailable or Throttling; 0: all of it
}

// OutageKind is a kind of outage.
type OutageKind uint8

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
	Policies
	Next     []Policies // for SetPolicies
	Fleet    bool
	Metrics  int // number of the Metrics; transports may share one
	Logger   bool
	Bare     bool          // it has no hooks, so that first attempts are plain
	Wrapped  bool          // the base isn't an *http.Transport
	Hostile  bool          // the wrapped base returns what nobody expects
	Handles  bool          // the wrapped base does more with bodies than send them
	Verifies bool          // the caller's own VerifyConnection accepts the server
	Refuses  bool          // or refuses it
	Client   time.Duration // http.Client.Timeout
}

// Policies is what SetPolicies gets.
type Policies struct {
	Default Policy
	Hosts   map[string]Policy // by pattern
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

const (
	NoClassify    Classify = iota
	RetriesTeas            // 418 is Retryable
	ThrottlesTeas          // 418 is Throttled
	FinalTeas              // 418 and 503 with World-Final are Final
	Polls                  // 202 is Retryable
	PeeksAtStart           // peeks at the body, and a body that begins with "!" is Retryable
	classifies
)

// Idempotent is a kind of Policy.Idempotent.
type Idempotent uint8

const (
	NoIdempotent Idempotent = iota
	NeverIdempotent
	ByHeader // the header World-Safe says so
	idempotents
)

// Caller makes calls.
type Caller struct {
	Start     time.Duration
	Transport int
	Calls     []Call
	Burst     bool // it doesn't wait for a call before it makes the next one
}

// Call is one request to a client.
type Call struct {
	Gap     time.Duration // before it
	Site    int
	Method  string
	Part    int  // of the site, with a segment of the path; 0: none
	Key     bool // Idempotency-Key
	Safe    bool // World-Safe
	Body    BodyKind
	Size    int           // of the body
	Drip    time.Duration // of each Read of the body
	Trailer bool          // the body sets one at its end
	Policy  *Policy
	Panics  Panic
	Traced  bool  // an httptrace counts
	Hints   Hints // what the Got1xxResponse of an httptrace does
	Spells  int   // how the host is spelled

	Deadline time.Duration // of the context; 0: none
	Cancel   time.Duration // after which it is canceled; 0: never; negative: before it begins
	Cause    bool          // the cancellation has a cause
	Legacy   bool          // it is canceled by Request.Cancel
	Direct   bool          // RoundTrip without an http.Client

	Read   Reading
	Pace   time.Duration // between reads
	Linger time.Duration // between the last Read and Close
	Stays  time.Duration // between Close and the end of the context
	Script []Step        // of the server, by arrival; then it answers at once
	Range  bool          // the call asks for a part
}

// Panic is a hook, or a function of the policy, that panics.
type Panic uint8

const (
	NoPanic Panic = iota
	AtAttempt
	AtRetry
	AtGiveUp
	AtDone
	AtClassify
	AtIdempotent
	AtKey
	panicKinds
)

// Hints is what a Got1xxResponse does.
type Hints uint8

const (
	NoHints Hints = iota
	AcceptsHints
	RefusesHints
	hintKinds
)

// BodyKind is a kind of request body.
type BodyKind uint8

const (
	NoBody    BodyKind = iota
	Bytes              // with GetBody, as http.NewRequest makes it
	Stream             // readable once
	Section            // an io.SectionReader
	OwnGet             // a stream with a GetBody of the caller's
	Rewinds            // whose GetBody rewinds the one stream
	FailsGet           // whose GetBody fails
	FailsRead          // the body fails halfway
	TooShort           // it is shorter than ContentLength says
	bodyKinds
)

// Reading is how a caller reads the response.
type Reading uint8

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
	Duplex bool          // responds before it reads the request's body
	Length int           // of the response's body
	Plain  bool          // no Content-Length
	Ends   Ending        // what follows the body
	Cut    int           // the body breaks after so many bytes; 0: it doesn't
	Stall  time.Duration // pause in the middle of the body
	Bump   bool          // the file has changed
	Ranges RangeKind
	Close  bool // Connection: close
}

// Ending is what follows the body of a response.
type Ending uint8

const (
	NoTrailer Ending = iota
	Announced        // a trailer that the header names
	Surprise         // a trailer that it doesn't
	endings
)

// StepKind is a kind of Step.
type StepKind uint8

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

const (
	Silence   Word = iota
	Seconds        // Retry-After: 2
	Date           // as an IMF-fixdate, with a Date
	DateSkew       // whose clock is wrong, and so is Date
	OldDate        // in the format of RFC 850
	OlderDate      // in the format of asctime
	Two            // two lines, of which the longest counts
	Garbage        // what RFC 9110 knows nothing of
	Millis         // Retry-After-Ms, which counts if the policy knows the dialect
	RateLimit      // RateLimit fields, likewise
	Reset          // X-RateLimit-Reset and the like, likewise
	Services       // the fields of several services, likewise
	OfAll          // Retry-After, and that a limit is one of all requests
	words
)

// RangeKind is how a server responds to a request for a part.
type RangeKind uint8

const (
	RightRange    RangeKind = iota
	IgnoresRange            // 200 with everything
	WrongRange              // a 206 with another Content-Range
	WeakTag                 // the ETag is weak, and the same for all versions
	NoTag                   // no ETag, but Last-Modified
	NoValidator             // neither
	ShortRange              // a 206 with only half of what was asked
	EarlyRange              // a 206 that begins earlier
	LateRange               // a 206 that begins later
	PartAs200               // a part as a 200
	ignoreIfRange           // a 206 of the current version, whatever If-Range says
	rangeKinds
)

// Operation is what an operator does.
type Operation struct {
	At        time.Duration
	Transport int
	Kind      OperationKind
	Names     int // of hosts that don't exist
}

// OperationKind is a kind of Operation.
type OperationKind uint8

const (
	Looks OperationKind = iota // HostStates and HostState
	Gathers
	SwapsPolicies
	ClosesIdle
	ClosesFleet
	Meets // many hosts that don't exist
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
