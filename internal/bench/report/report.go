// Package report makes of a benchmark's measurements what people and pipelines
// read: JSON, Markdown, and one HTML page that needs nothing else.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/internal/bench/stats"
	"qtls.dev/qtls/internal/bench/validity"
)

// Version is that of the JSON.
const Version = 1

// Report is the result of a run.
type Report struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	Namespace string    `json:"namespace,omitempty"`
	UID       string    `json:"uid,omitempty"`
	Gateway   string    `json:"gateway"`
	Started   time.Time `json:"started"`
	Finished  time.Time `json:"finished"`
	Preset    string    `json:"preset,omitempty"`
	// Seed of the order of the measurements.
	Seed int64 `json:"seed"`
	// Load that was made; nil where it is not described.
	Load        *Load       `json:"load,omitempty"`
	Environment Environment `json:"environment"`
	Modes       []Mode      `json:"modes"`
	// Points are sorted as the modes are, then by replicas.
	Points     []Point     `json:"points"`
	Scaling    []Scaling   `json:"scaling,omitempty"`
	Peers      []Peer      `json:"peers,omitempty"`
	Thresholds []Threshold `json:"thresholds,omitempty"`
	Comparison *Comparison `json:"comparison,omitempty"`
	// NotCompared says why there is no comparison with the baseline that was named.
	NotCompared *Why `json:"notCompared,omitempty"`
	// Aborted says why the run ended before everything was measured.
	Aborted *Why     `json:"aborted,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// Why something is so: a condition's reason and message.
type Why struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (w Why) String() string { return w.Reason + ": " + w.Message }

// Load is how hard and how long each measurement was. Durations are nanoseconds.
type Load struct {
	// ClientsPerReplica connect one time after the other in the phase Capacity.
	ClientsPerReplica int `json:"clientsPerReplica"`
	// Percent of the capacity in the phase Latency.
	Percent     int           `json:"percent"`
	Pods        int           `json:"pods"` // of the generator
	WarmUp      time.Duration `json:"warmUp"`
	Window      time.Duration `json:"window"`
	Repetitions int           `json:"repetitions"`
}

func (l Load) String() string {
	return fmt.Sprintf("%d clients for each replica; latency at %d %% of the capacity; %d times %v after a warm-up of %v; pods that made it: %d", l.ClientsPerReplica, l.Percent, l.Repetitions, l.Window, l.WarmUp, l.Pods)
}

// Environment is what the figures belong to.
type Environment struct {
	Versions []Program `json:"versions,omitempty"`
	Images   []Image   `json:"images,omitempty"`
	Machines []Machine `json:"machines,omitempty"`
	// Generators are the machines that the load was made on; older reports have none.
	Generators []Machine `json:"generators,omitempty"`
	Quotas     []Quota   `json:"quotas,omitempty"`
	// HSM is what keys of modes in HSMs lie in; older reports have none.
	HSM []HSMMember `json:"hsm,omitempty"`
}

// Program is one that took part.
type Program struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Image is one that ran, with its digest.
type Image struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

// Machine is a node: Machines are the gateway's.
type Machine struct {
	Name     string   `json:"name"`
	CPUModel string   `json:"cpuModel"`
	CPUs     int      `json:"cpus"`
	Flags    []string `json:"flags,omitempty"` // those that cryptography uses
	Memory   int64    `json:"memory,omitempty"`
	Kernel   string   `json:"kernel,omitempty"`
}

// Quota is what each container of a kind may use, as Kubernetes writes it; empty
// without a limit.
type Quota struct {
	Container string `json:"container"`
	CPU       string `json:"cpu,omitempty"`
	Memory    string `json:"memory,omitempty"`
}

// HSMMember is one of a pool's.
type HSMMember struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// CPU and Memory that the daemon may use which the operator runs for it; empty where
	// it runs none.
	CPU    string `json:"cpu,omitempty"`
	Memory string `json:"memory,omitempty"`
	// Sessions of each replica: so many signatures at a time.
	Sessions int `json:"sessions,omitempty"`
}

func (m HSMMember) String() string {
	text := m.Kind
	if m.CPU != "" {
		text += fmt.Sprintf(", CPU %s, memory %s", m.CPU, m.Memory)
	}
	return text + fmt.Sprintf(", %d sessions of each replica", m.Sessions)
}

// Mode is a kind of handshake that was measured on its own.
type Mode struct {
	Name             string   `json:"name"`
	Groups           []string `json:"groups,omitempty"`
	SignatureSchemes []string `json:"signatureSchemes,omitempty"`
	Resumed          bool     `json:"resumed,omitempty"`
	HSM              bool     `json:"hsm,omitempty"`
	// Operation that follows the handshake: Request or Transfer; empty without one.
	Operation string `json:"operation,omitempty"`
	// Transfer is the size of the body in bytes, 0 without one.
	Transfer int64 `json:"transfer,omitempty"`
	// Listener of the gateway that was measured, the ServerName that clients asked for
	// (SNI), and the Path of the requests, where there were any. In older reports, and
	// where the gateway was gone before the report was made, they are empty.
	Listener   string `json:"listener,omitempty"`
	ServerName string `json:"serverName,omitempty"`
	Path       string `json:"path,omitempty"`
	// Peer is another server that was measured in the place of the gateway, and
	// PeerOf the gateway's mode that it is compared with.
	Peer   string `json:"peer,omitempty"`
	PeerOf string `json:"peerOf,omitempty"`
}

// Point is one mode at one number of replicas. A phase that was not measured is
// nil.
type Point struct {
	Mode     string    `json:"mode"`
	Replicas int       `json:"replicas"`
	Valid    bool      `json:"valid"`
	Capacity *Capacity `json:"capacity,omitempty"`
	Latency  *Latency  `json:"latency,omitempty"`
	// Attempts and Failures of both phases, by class, valid or not.
	Attempts int64            `json:"attempts"`
	Failures map[string]int64 `json:"failures,omitempty"`
	// Kinds of handshakes that were made in both phases, the most frequent first.
	Kinds []Kind `json:"kinds,omitempty"`
	// Resumption is the share of handshakes that were resumed.
	Resumption float64 `json:"resumption"`
	// Bytes of a mean handshake of the mode's, full or resumed, as on the wire of TLS.
	Bytes Bytes `json:"bytes"`
	// ExchangeBytes are the application data of a mean exchange that followed one; nil
	// where none did.
	ExchangeBytes *Bytes   `json:"exchangeBytes,omitempty"`
	Remarks       []string `json:"remarks,omitempty"`
}

// Kind of handshakes, and how many there were.
type Kind struct {
	shard.Kind
	Count int64 `json:"count"`
}

// mostKinds of a point are told: one that has more is no result.
const mostKinds = 8

// describe a kind.
func describe(k shard.Kind) string {
	text := k.Group
	if k.Version != "" {
		text = k.Version + ", " + text
	}
	if k.SignatureAlgorithm != "" {
		text += ", " + k.SignatureAlgorithm
	}
	if k.Resumed {
		text += ", resumed"
	}
	if k.HelloRetry {
		text += ", after a HelloRetryRequest"
	}
	return text
}

// kinds of handshakes, in words.
func (p Point) kinds() string {
	var total int64
	for _, k := range p.Kinds {
		total += k.Count
	}
	var all []string
	for _, k := range p.Kinds {
		text := describe(k.Kind)
		if len(p.Kinds) > 1 {
			text = percent(float64(k.Count)/float64(total)) + " " + text
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// Failed is how many attempts did.
func (p Point) Failed() int64 {
	var n int64
	for _, count := range p.Failures {
		n += count
	}
	return n
}

// failureShare of the attempts, with their numbers.
func (p Point) failureShare() string {
	if p.Attempts == 0 {
		return none
	}
	failed := p.Failed()
	return fmt.Sprintf("%s %% (%s of %s)", figure3(100*float64(failed)/float64(p.Attempts)), whole(failed), whole(p.Attempts))
}

// repetitions that were measured, in the phase that has most.
func (p Point) repetitions() int {
	n := 0
	if c := p.Capacity; c != nil {
		n = len(c.Repetitions) - c.missing()
	}
	if l := p.Latency; l != nil {
		n = max(n, len(l.Repetitions)-l.missing())
	}
	return n
}

// exchanged tells whether anything followed the handshakes.
func (p Point) exchanged() bool {
	return p.ExchangeBytes != nil || p.Latency != nil && p.Latency.Exchange > 0
}

// missing counts the measurements of a point without a result, and all of them.
func (p Point) missing() (missing, of int) {
	if c := p.Capacity; c != nil {
		missing, of = missing+c.missing(), of+len(c.Repetitions)
	}
	if l := p.Latency; l != nil {
		missing, of = missing+l.missing(), of+len(l.Repetitions)
	}
	return missing, of
}

// Phase is what both phases have.
type Phase struct {
	// Valid: the figures are a result.
	Valid       bool         `json:"valid"`
	Repetitions []Repetition `json:"repetitions"`
}

// Reasons why repetitions of the phase are no results: of each rule the first one.
func (p Phase) Reasons() []string {
	var rules []validity.Rule
	first := map[validity.Rule]string{}
	blocks := map[validity.Rule][]int{}
	for _, r := range p.Repetitions {
		for _, reason := range r.Reasons {
			if first[reason.Rule] == "" {
				rules, first[reason.Rule] = append(rules, reason.Rule), reason.Message
			}
			if in := blocks[reason.Rule]; len(in) == 0 || in[len(in)-1] != r.Block {
				blocks[reason.Rule] = append(in, r.Block)
			}
		}
	}
	var reasons []string
	for _, rule := range rules {
		in := blocks[rule]
		text := fmt.Sprintf("repetition %d: %s", in[0], first[rule])
		if len(in) > 1 {
			text += fmt.Sprintf(" (repetitions %s too)", numbers(in[1:]))
		}
		reasons = append(reasons, text)
	}
	return reasons
}

// missing counts the repetitions without a result.
func (p Phase) missing() int {
	n := 0
	for _, r := range p.Repetitions {
		if r.Missing {
			n++
		}
	}
	return n
}

// results counts the repetitions that are valid.
func (p Phase) results() int {
	n := 0
	for _, r := range p.Repetitions {
		if r.Valid() {
			n++
		}
	}
	return n
}

// Repetition is one measurement.
type Repetition struct {
	Block int `json:"block"`
	// Missing: there is no result at all, and Reasons say why.
	Missing   bool    `json:"missing,omitempty"`
	PerSecond float64 `json:"perSecond"`
	// Mean time of a handshake and the server's CPU time for one, in seconds; 0
	// when not observed.
	Mean      float64           `json:"mean,omitempty"`
	ServerCPU float64           `json:"serverCPU,omitempty"`
	Idle      *float64          `json:"idle,omitempty"`
	Reasons   []validity.Reason `json:"reasons,omitempty"`
}

// Valid tells whether the repetition is a result.
func (r Repetition) Valid() bool { return len(r.Reasons) == 0 }

// Capacity is all that the replicas could do. Its estimates are over the valid
// repetitions, or over all where the phase is not valid.
type Capacity struct {
	Phase
	PerSecond stats.Estimate `json:"perSecond"`
	// ServerCPU is in seconds a handshake, PerCPUSecond in handshakes for each
	// CPU-second that the quotas granted.
	ServerCPU    *stats.Estimate `json:"serverCPU,omitempty"`
	PerCPUSecond *stats.Estimate `json:"perCPUSecond,omitempty"`
	// Memory of a pod at most, in bytes, and what each connection takes on average, with the
	// interval of that over repetitions; nil where it grew in fewer than two, and in older
	// reports.
	Memory              int64           `json:"memory,omitempty"`
	MemoryPerConnection int64           `json:"memoryPerConnection,omitempty"`
	MemoryInterval      *stats.Interval `json:"memoryPerConnectionInterval,omitempty"`
	// Imbalance is by how much the busiest replica did more than its part.
	Imbalance *float64 `json:"imbalance,omitempty"`
	// Idle is the least idle share of a machine.
	Idle *float64 `json:"idle,omitempty"`
	// Quota of a replica in CPUs, 0 when there is none or they differ.
	Quota      float64          `json:"quota,omitempty"`
	Bottleneck validity.Finding `json:"bottleneck"`
	// Observed is what the bottleneck is named from, and what it is not.
	Observed Observed `json:"observed"`
}

// Observed is the worst of all repetitions, replicas and pods of the generator, in
// shares. What was not observed, or is not there, is nil.
type Observed struct {
	// Throttled is in which share of its CPU periods the replica that was throttled
	// least was.
	Throttled *float64 `json:"throttled,omitempty"`
	// MemoryUse is of the limit, MemoryStalled of the time.
	MemoryUse     *float64 `json:"memoryUse,omitempty"`
	MemoryStalled *float64 `json:"memoryStalled,omitempty"`
	OOMKills      int64    `json:"oomKills,omitempty"`
	// HSMUse is of its sessions, HSMWait of the time that handshakes were at the
	// server.
	HSMUse  *float64 `json:"hsmUse,omitempty"`
	HSMWait *float64 `json:"hsmWait,omitempty"`
	// WithoutTicketKeys are replicas that had none of the store's.
	WithoutTicketKeys *int `json:"withoutTicketKeys,omitempty"`
	// Retransmitted is of the replicas' segments, Network of a handshake's time.
	// BytesPerSecond are those of all replicas, both ways.
	Retransmitted  *float64 `json:"retransmitted,omitempty"`
	Network        *float64 `json:"network,omitempty"`
	BytesPerSecond *float64 `json:"bytesPerSecond,omitempty"`
	// GeneratorUse is of the CPU that its pods may have.
	GeneratorUse       *float64 `json:"generatorUse,omitempty"`
	GeneratorThrottled int64    `json:"generatorThrottled,omitempty"`
	GeneratorIdle      *float64 `json:"generatorIdle,omitempty"`
	// LeastSeen and MostSeen are the time between the two looks at a replica, as a part of
	// the window.
	LeastSeen *float64 `json:"leastSeen,omitempty"`
	MostSeen  *float64 `json:"mostSeen,omitempty"`
}

// Latency is how long handshakes took below that: in a mode that resumes, those that
// were.
type Latency struct {
	Phase
	// Count of handshakes, and of attempts that failed. These have no time; to
	// percentiles they took longer than any handshake, and there is no Max with them
	// that a gate would take.
	Count  int64   `json:"count"`
	Failed int64   `json:"failed,omitempty"`
	Rate   float64 `json:"rate"`
	// Times are in nanoseconds, the mean in seconds, over repetitions.
	Min         time.Duration      `json:"min"`
	Mean        stats.Estimate     `json:"mean"`
	Max         time.Duration      `json:"max"`
	Percentiles []stats.Percentile `json:"percentiles"`
	// Split of the mean; nil where the generator did not measure it.
	Split *Split `json:"split,omitempty"`
	// Connect is how long TCP's handshakes took before TLS's, which are no part of
	// those; nil in older reports.
	Connect *Connect `json:"connect,omitempty"`
	// Exchange is the mean time of what followed the handshake, and ExchangeInterval that
	// of this mean, in seconds over repetitions; nil where fewer than two had any, and in
	// older reports.
	Exchange         time.Duration   `json:"exchange,omitempty"`
	ExchangeInterval *stats.Interval `json:"exchangeInterval,omitempty"`
}

// Percentile of the latency.
func (l Latency) Percentile(p float64) stats.Percentile {
	for _, q := range l.Percentiles {
		if q.P == p {
			return q
		}
	}
	return stats.Percentile{P: p, Unavailable: "not measured"}
}

// Connect is how long TCP's handshakes took.
type Connect struct {
	Mean time.Duration `json:"mean"`
	Max  time.Duration `json:"max"`
}

// Split says whose time the mean handshake is.
type Split struct {
	Client  time.Duration `json:"client"`
	Network time.Duration `json:"network"`
	Server  time.Duration `json:"server"`
}

// Bytes that the client sent and received. Certificate is part of Received, and of
// handshakes only.
type Bytes struct {
	Sent        float64 `json:"sent"`
	Received    float64 `json:"received"`
	Certificate float64 `json:"certificate,omitempty"`
}

// Scaling is the curve of a mode.
type Scaling struct {
	Mode string `json:"mode"`
	// Base is the number of replicas that efficiencies relate to: the least with a valid
	// capacity.
	Base         int          `json:"base"`
	Efficiencies []Efficiency `json:"efficiencies,omitempty"`
	// Fit is nil where it is not available.
	Fit         *stats.USL `json:"fit,omitempty"`
	Unavailable string     `json:"unavailable,omitempty"`
	// Curve is the fitted law, up to the last prediction.
	Curve       []At `json:"curve,omitempty"`
	Predictions []At `json:"predictions,omitempty"`
	// Peak is with how many replicas the throughput is greatest, 0 where the fit
	// has none or κ may be 0.
	Peak float64 `json:"peak,omitempty"`
	// Label says what kind of curve it is, Note what else limited it.
	Label string `json:"label"`
	Note  string `json:"note,omitempty"`
}

// relative says of an efficiency or of the ideal what it relates to, where that is not one
// replica.
func (s Scaling) relative() string {
	if s.Base <= 1 {
		return ""
	}
	return " relative to " + replicas(s.Base)
}

// Efficiency of some replicas.
type Efficiency struct {
	Replicas int            `json:"replicas"`
	Estimate stats.Estimate `json:"estimate"`
}

// At is a fitted throughput.
type At struct {
	Replicas  int            `json:"replicas"`
	PerSecond stats.Interval `json:"interval"`
	Value     float64        `json:"value"`
}

// Peer compares the gateway with another server in the same blocks of a run.
type Peer struct {
	Mode     string         `json:"mode"`
	Peer     string         `json:"peer"`
	Replicas int            `json:"replicas"`
	Ratio    stats.Estimate `json:"ratio"` // gateway to peer
}

// mode by its name.
func (r Report) mode(name string) (Mode, bool) {
	for _, m := range r.Modes {
		if m.Name == name {
			return m, true
		}
	}
	return Mode{}, false
}

// point of a mode.
func (r Report) point(mode string, replicas int) (Point, bool) {
	for _, p := range r.Points {
		if p.Mode == mode && p.Replicas == replicas {
			return p, true
		}
	}
	return Point{}, false
}

// measures tells whether the report has points of a mode.
func (r Report) measures(mode string) bool {
	return slices.ContainsFunc(r.Points, func(p Point) bool { return p.Mode == mode })
}

func (r Report) scaling(mode string) (Scaling, bool) {
	for _, s := range r.Scaling {
		if s.Mode == mode {
			return s, true
		}
	}
	return Scaling{}, false
}

// efficiency of a point, where there is one.
func (r Report) efficiency(mode string, replicas int) (stats.Estimate, bool) {
	s, _ := r.scaling(mode)
	for _, e := range s.Efficiencies {
		if e.Replicas == replicas {
			return e.Estimate, true
		}
	}
	return stats.Estimate{}, false
}

// ValidPoints counts the gateway's points that are results, of all that it has. Those of
// other servers decide nothing of it.
func (r Report) ValidPoints() (valid, all int) {
	for _, p := range r.Points {
		if r.ofPeer(p) {
			continue
		}
		if all++; p.Valid {
			valid++
		}
	}
	return valid, all
}

// ofPeer tells whether a point is another server's.
func (r Report) ofPeer(p Point) bool {
	m, _ := r.mode(p.Mode)
	return m.Peer != ""
}

// JSON of the report.
func (r Report) JSON() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

// Parse reads a report's JSON: a baseline, say.
func Parse(text []byte) (Report, error) {
	if len(text) > MostJSON {
		return Report{}, fmt.Errorf("a report of %d bytes: at most %d", len(text), MostJSON)
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return Report{}, fmt.Errorf("not a report: %w", err)
	}
	if v.Version != Version {
		return Report{}, fmt.Errorf("a report of version %d: this release reads %d; measure the baseline again", v.Version, Version)
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	var r Report
	if err := d.Decode(&r); err != nil {
		return Report{}, fmt.Errorf("not a report: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Report{}, errors.New("not a report: there is something behind it")
	}
	return r, nil
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
