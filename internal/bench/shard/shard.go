// Package shard is what the pods of a load generator tell the operator: each one
// measures a segment of the load, and prints one line with what it saw. The
// operator reads the lines from the pods' logs and merges them exactly:
// percentiles are taken of merged histograms, never averaged.
package shard

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"qtls.dev/qtls/internal/machine"
)

// Version is that of the line's format.
const Version = 1

// Prefix begins the line with a shard in a pod's log.
const Prefix = "qtls-bench-result: "

// Shard is what one pod saw in one measured window, warm-up not included.
type Shard struct {
	Version int `json:"version"`
	// Point is what the operator calls the measurement: the run, the point, the
	// phase and the repetition. A pod hands it back as it got it.
	Point string `json:"point"`
	// Segment is the pod's part of the load.
	Segment Segment `json:"segment"`
	// Start and End of the window, in Unix nanoseconds.
	Start int64 `json:"start"`
	End   int64 `json:"end"`

	Target Target `json:"target"`

	// Iterations ended inside the window, well or not. Dropped ones should have
	// begun in it, and found no virtual user free.
	Iterations int64 `json:"iterations"`
	Dropped    int64 `json:"dropped"`
	// StartLag is by how much iterations began later than they should have; nil
	// in a closed loop, where none is due at a time.
	StartLag *Histogram `json:"startLag,omitempty"`

	Failures   map[Failure]int64 `json:"failures,omitempty"`
	Handshakes []Series          `json:"handshakes,omitempty"`
	CPU        CPU               `json:"cpu"`
	// TCP is what the pod sent in the window; zeros where that was not observed, and of
	// older generators.
	TCP TCP `json:"tcp,omitzero"`
	// Machine that the pod is on; nil where it cannot see it.
	Machine *machine.Machine `json:"machine,omitempty"`
	// Versions of the programs that made the load, by name.
	Versions map[string]string `json:"versions,omitempty"`
}

// Target is what was connected to.
type Target struct {
	Host string `json:"host"` // host:port
	SNI  string `json:"sni,omitempty"`
}

// Kind tells handshakes apart that must not be measured as one.
type Kind struct {
	Group              string `json:"group"`
	SignatureAlgorithm string `json:"signatureAlgorithm,omitempty"` // none when resumed
	Version            string `json:"version"`                      // TLSv1.3
	Resumed            bool   `json:"resumed,omitempty"`
	HelloRetry         bool   `json:"helloRetry,omitempty"`
}

// Series is what was seen of the successful handshakes of one kind.
type Series struct {
	Kind
	Count int64 `json:"count"`

	// Connect is TCP's handshake, before TLS's; no part of Handshake. A server that
	// cannot accept any more is slow here.
	Connect *Histogram `json:"connect,omitempty"`
	// Handshake is from the ClientHello until the client is done. Client is the
	// part of it that the client computes (its thread's CPU time), Network the
	// round trips, Server the rest.
	Handshake *Histogram `json:"handshake"`
	Client    *Histogram `json:"client,omitempty"`
	Network   *Histogram `json:"network,omitempty"`
	Server    *Histogram `json:"server,omitempty"`
	// Exchange is from the request to the end of the response, nil without one.
	Exchange *Histogram `json:"exchange,omitempty"`

	// BytesSent and BytesReceived are those of the handshakes, in total, as on
	// the wire of TLS; CertificateBytes are the Certificate messages in them.
	BytesSent        int64 `json:"bytesSent"`
	BytesReceived    int64 `json:"bytesReceived"`
	CertificateBytes int64 `json:"certificateBytes,omitempty"`
	// ExchangeBytesSent and ExchangeBytesReceived are those of the exchanges'
	// application data, in total.
	ExchangeBytesSent     int64 `json:"exchangeBytesSent,omitempty"`
	ExchangeBytesReceived int64 `json:"exchangeBytesReceived,omitempty"`
}

func (s *Series) histograms() map[string]**Histogram {
	return map[string]**Histogram{"connect": &s.Connect, "handshake": &s.Handshake, "client": &s.Client, "network": &s.Network, "server": &s.Server, "exchange": &s.Exchange}
}

// CPU is what the generator itself needed.
type CPU struct {
	// Client is the CPU time of the threads in handshakes, in nanoseconds.
	Client int64 `json:"client"`
	// Periods of the pod's CPU quota in the window, and those in which it was
	// throttled. Both are 0 without a quota.
	Periods          int64 `json:"periods,omitempty"`
	ThrottledPeriods int64 `json:"throttledPeriods,omitempty"`
	// Used is the CPU time of the pod in the window, in nanoseconds; MachineTotal and
	// MachineIdle are the CPU time of its machine and the part of it that nobody used,
	// in ticks. All three are 0 where they were not observed.
	Used         int64 `json:"used,omitempty"`
	MachineTotal int64 `json:"machineTotal,omitempty"`
	MachineIdle  int64 `json:"machineIdle,omitempty"`
}

// TCP is how many segments were sent, and sent again for not having arrived.
type TCP struct {
	Segments      int64 `json:"segments"`
	Retransmitted int64 `json:"retransmitted"`
}

// Tick of the kernel's clocks in /proc/stat (USER_HZ).
const Tick = 10 * time.Millisecond

// Segment is the Index-th of Count parts of the load, counted from 0: "0/4" to
// "3/4".
type Segment struct{ Index, Count int }

func (s Segment) String() string               { return fmt.Sprintf("%d/%d", s.Index, s.Count) }
func (s Segment) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *Segment) UnmarshalText(text []byte) error {
	i, n, _ := strings.Cut(string(text), "/")
	index, err1 := strconv.ParseUint(i, 10, 16)
	count, err2 := strconv.ParseUint(n, 10, 16)
	parsed := Segment{int(index), int(count)}
	if err1 != nil || err2 != nil || parsed.String() != string(text) {
		return fmt.Errorf("segment %q: want INDEX/COUNT, as in 0/4", cut(string(text)))
	}
	*s = parsed
	return nil
}

// Failure is the class of a failed iteration.
type Failure string

const (
	Connect   Failure = "Connect"   // no TCP connection
	Timeout   Failure = "Timeout"   // the time limit passed
	Handshake Failure = "Handshake" // refused by one side; Alert says how
	Verify    Failure = "Verify"    // the certificate was not accepted
	HTTP      Failure = "HTTP"      // another status than was expected
	Reset     Failure = "Reset"     // the connection ended early
	Other     Failure = "Other"
)

// Failures are all classes.
var Failures = []Failure{Connect, Timeout, Handshake, Verify, HTTP, Reset, Other}

// Alert is a failed handshake with the alert's description, as in
// "Handshake(handshake_failure)".
func Alert(description string) Failure {
	return Failure(string(Handshake) + "(" + description + ")")
}

// Class is the failure without the alert.
func (f Failure) Class() Failure {
	if class, alert, found := strings.Cut(string(f), "("); found && strings.HasSuffix(alert, ")") && Failure(class) == Handshake {
		return Handshake
	}
	return f
}

// Window is how long was measured.
func (s Shard) Window() time.Duration { return time.Duration(s.End - s.Start) }

// What a shard may hold. Nothing that a pod can measure comes near.
const (
	most         = int64(1) << 50 // of anything that is counted; sums of all segments stay below 2^63
	mostPods     = 4096
	mostSeries   = 256
	mostPrograms = 16
	mostText     = 256
	mostFlags    = 64
)

// validate says what is wrong with a shard.
func (s Shard) validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		if text, ok := value.(string); ok {
			value = strconv.Quote(cut(text))
		}
		errs = append(errs, fmt.Errorf("%s %v: want %s", field, value, want))
	}
	text := func(field, value string, required bool) {
		switch {
		case required && value == "":
			bad(field, value, "it to be given")
		case len(value) > mostText:
			bad(field, value, fmt.Sprintf("at most %d bytes", mostText))
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }):
			bad(field, value, "printable text")
		}
	}
	count := func(field string, n int64) {
		if n < 0 || n > most {
			bad(field, n, fmt.Sprintf("0 to %d", most))
		}
	}
	if s.Version != Version {
		bad("version", s.Version, strconv.Itoa(Version))
	}
	text("point", s.Point, true)
	if s.Segment.Count < 1 || s.Segment.Count > mostPods || s.Segment.Index < 0 || s.Segment.Index >= s.Segment.Count {
		bad("segment", s.Segment, fmt.Sprintf("one from 0/N to N-1/N, N at most %d", mostPods))
	}
	if s.Start <= 0 || s.End <= s.Start {
		bad("window", fmt.Sprintf("%d to %d", s.Start, s.End), "an end after the start")
	}
	text("target.host", s.Target.Host, true)
	text("target.sni", s.Target.SNI, false)
	count("iterations", s.Iterations)
	count("dropped", s.Dropped)
	if s.StartLag.Count() > s.Iterations {
		bad("startLag", s.StartLag.Count(), fmt.Sprintf("at most one for each of %d iterations", s.Iterations))
	}
	var outcomes int64
	for _, f := range slices.Sorted(maps.Keys(s.Failures)) {
		field := "failures." + cut(string(f))
		if !slices.Contains(Failures, f.Class()) {
			bad("failures", string(f), fmt.Sprintf("one of %v", Failures))
		}
		text("failures", string(f), true)
		count(field, s.Failures[f])
		outcomes += s.Failures[f]
		if outcomes < 0 || outcomes > most {
			break // enough is said of it, and the sum must not overflow
		}
	}
	if len(s.Handshakes) > mostSeries {
		bad("handshakes", len(s.Handshakes), fmt.Sprintf("at most %d kinds", mostSeries))
		return errors.Join(errs...)
	}
	seen := map[Kind]bool{}
	for i := range s.Handshakes {
		h := &s.Handshakes[i]
		field := fmt.Sprintf("handshakes[%d].", i)
		if seen[h.Kind] {
			bad(field+"group", h.Group, "each kind once")
		}
		seen[h.Kind] = true
		text(field+"group", h.Group, true)
		text(field+"signatureAlgorithm", h.SignatureAlgorithm, false)
		text(field+"version", h.Version, true)
		count(field+"count", h.Count)
		count(field+"bytesSent", h.BytesSent)
		count(field+"bytesReceived", h.BytesReceived)
		count(field+"certificateBytes", h.CertificateBytes)
		count(field+"exchangeBytesSent", h.ExchangeBytesSent)
		count(field+"exchangeBytesReceived", h.ExchangeBytesReceived)
		if outcomes += h.Count; outcomes < 0 || outcomes > most {
			break
		}
		if h.Handshake.Count() != h.Count {
			bad(field+"handshake", h.Handshake.Count(), fmt.Sprintf("one for each of %d handshakes", h.Count))
		}
		for name, histogram := range h.histograms() {
			if (*histogram).Count() > h.Count {
				bad(field+name, (*histogram).Count(), fmt.Sprintf("at most one for each of %d handshakes", h.Count))
			}
		}
	}
	// A batch has several handshakes an iteration, so they may be more; but each
	// iteration ended in some way.
	if outcomes < s.Iterations {
		bad("iterations", s.Iterations, fmt.Sprintf("each to have ended in a handshake or a failure: there are %d", outcomes))
	}
	count("cpu.client", s.CPU.Client)
	count("cpu.periods", s.CPU.Periods)
	count("cpu.used", s.CPU.Used)
	count("cpu.machineTotal", s.CPU.MachineTotal)
	if s.CPU.MachineIdle < 0 || s.CPU.MachineIdle > s.CPU.MachineTotal {
		bad("cpu.machineIdle", s.CPU.MachineIdle, fmt.Sprintf("0 to %d, the machine's CPU time", s.CPU.MachineTotal))
	}
	count("tcp.segments", s.TCP.Segments)
	if s.TCP.Retransmitted < 0 || s.TCP.Retransmitted > s.TCP.Segments {
		bad("tcp.retransmitted", s.TCP.Retransmitted, fmt.Sprintf("0 to %d, the segments", s.TCP.Segments))
	}
	if m := s.Machine; m != nil {
		text("machine.cpuModel", m.CPUModel, false)
		text("machine.kernel", m.Kernel, false)
		count("machine.cpus", int64(m.CPUs))
		count("machine.memory", m.Memory)
		if len(m.Flags) > mostFlags {
			bad("machine.flags", len(m.Flags), fmt.Sprintf("at most %d", mostFlags))
		} else {
			for _, flag := range m.Flags {
				text("machine.flags", flag, true)
			}
		}
	}
	if len(s.Versions) > mostPrograms {
		bad("versions", len(s.Versions), fmt.Sprintf("at most %d", mostPrograms))
	} else {
		for _, program := range slices.Sorted(maps.Keys(s.Versions)) {
			text("versions", program, true)
			text("versions."+cut(program), s.Versions[program], true)
		}
	}
	if s.CPU.ThrottledPeriods < 0 || s.CPU.ThrottledPeriods > s.CPU.Periods {
		bad("cpu.throttledPeriods", s.CPU.ThrottledPeriods, fmt.Sprintf("0 to %d, the periods", s.CPU.Periods))
	}
	return errors.Join(errs...)
}

func cut(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

// Line is the line that a pod prints, without its end.
func (s Shard) Line() (string, error) {
	if err := s.validate(); err != nil {
		return "", err
	}
	text, err := json.Marshal(s)
	return Prefix + string(text), err
}

// mostLine is the longest line that Read takes: a shard of some kinds has 5 KB.
const mostLine = 4 << 20

// Parse reads a line that begins with Prefix.
func Parse(line string) (Shard, error) {
	text, found := strings.CutPrefix(line, Prefix)
	if !found {
		return Shard{}, fmt.Errorf("a line that does not begin with %q", Prefix)
	}
	if len(text) > mostLine {
		return Shard{}, fmt.Errorf("a line of %d bytes: at most %d", len(line), mostLine)
	}
	// The version first: another one's fields are not this one's.
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return Shard{}, fmt.Errorf("not JSON: %w", err)
	}
	if v.Version != Version {
		return Shard{}, fmt.Errorf("version %d: this operator reads %d; use the load generator's image of the same release", v.Version, Version)
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	var s Shard
	if err := d.Decode(&s); err != nil {
		return Shard{}, err
	}
	if err := s.validate(); err != nil {
		return Shard{}, err
	}
	return s, nil
}

// Read finds the shards in a pod's log. Lines without the prefix are skipped,
// whatever they hold; one with it that cannot be read is an error.
func Read(log io.Reader) ([]Shard, error) {
	r := bufio.NewReaderSize(log, 64<<10)
	var shards []Shard
	for n := 1; ; n++ {
		line, err := readLine(r)
		if text, found := bytes.CutSuffix(line, []byte("\r")); found {
			line = text
		}
		if bytes.HasPrefix(line, []byte(Prefix)) {
			s, err := Parse(string(line))
			if err != nil {
				return nil, fmt.Errorf("line %d of the log: %w", n, err)
			}
			shards = append(shards, s)
		}
		if errors.Is(err, io.EOF) {
			return shards, nil
		} else if err != nil {
			return nil, err
		}
	}
}

// readLine reads to the end of a line. Of one that is too long it keeps just
// enough for Parse to refuse it.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line) <= mostLine+len(Prefix) {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(line, []byte("\n")), err
		}
	}
}
