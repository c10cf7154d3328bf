package shard

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Result is what all pods saw together.
type Result struct {
	Point  string `json:"point"`
	Target Target `json:"target"`
	Pods   int    `json:"pods"`
	// Start is when the first pod's window began, End when the last one's ended,
	// in Unix nanoseconds. Common is for how long all measured.
	Start  int64         `json:"start"`
	End    int64         `json:"end"`
	Common time.Duration `json:"common"`

	Iterations int64             `json:"iterations"`
	Dropped    int64             `json:"dropped"`
	StartLag   *Histogram        `json:"startLag,omitempty"`
	Failures   map[Failure]int64 `json:"failures,omitempty"`
	// Handshakes are sorted by kind.
	Handshakes []Series `json:"handshakes,omitempty"`
	// CPU of all pods together, and of each with its machine, which several may
	// share.
	CPU       CPU   `json:"cpu"`
	CPUOfPods []CPU `json:"cpuOfPods,omitempty"`
	// TCP is what all pods sent together.
	TCP TCP `json:"tcp,omitzero"`
	// Versions of the programs that made the load, by name: the pods have one image.
	Versions map[string]string `json:"versions,omitempty"`
	// PerSecond is the sum of the pods' rates, each over its own window.
	PerSecond float64 `json:"perSecond"`
}

// Merge puts the shards of all segments of one point together. It refuses what
// does not make up exactly one load: other points or targets, a segment twice or
// missing, windows without a time in common.
func Merge(shards []Shard) (Result, error) {
	if len(shards) == 0 {
		return Result{}, fmt.Errorf("no shards")
	}
	first := shards[0]
	r := Result{Point: first.Point, Target: first.Target, Pods: len(shards), Start: first.Start, End: first.End}
	from, to := first.Start, first.End
	seen := map[int]bool{}
	for _, s := range shards {
		if err := s.validate(); err != nil {
			return Result{}, fmt.Errorf("segment %s: %w", s.Segment, err)
		}
		switch {
		case s.Point != first.Point:
			return Result{}, fmt.Errorf("segment %s is of point %q, segment %s of %q", s.Segment, s.Point, first.Segment, first.Point)
		case s.Target != first.Target:
			return Result{}, fmt.Errorf("segment %s measured %v, segment %s %v", s.Segment, s.Target, first.Segment, first.Target)
		case s.Segment.Count != first.Segment.Count:
			return Result{}, fmt.Errorf("segments %s and %s are not of one load", first.Segment, s.Segment)
		case seen[s.Segment.Index]:
			return Result{}, fmt.Errorf("segment %s is there twice", s.Segment)
		}
		seen[s.Segment.Index] = true
		from, to = max(from, s.Start), min(to, s.End)
	}
	if missing := first.Segment.Count - len(shards); missing > 0 {
		var names []string
		for i := range first.Segment.Count {
			if !seen[i] {
				names = append(names, Segment{i, first.Segment.Count}.String())
			}
		}
		return Result{}, fmt.Errorf("%d segments are missing: %s", missing, cut(strings.Join(names, " ")))
	}
	if to <= from {
		return Result{}, fmt.Errorf("the windows have no time in common: one ended %v before another began", time.Duration(from-to))
	}
	r.Common = time.Duration(to - from)

	kinds := map[Kind]*Series{}
	for i := range shards {
		s := &shards[i]
		r.Start, r.End = min(r.Start, s.Start), max(r.End, s.End)
		r.Iterations += s.Iterations
		r.Dropped += s.Dropped
		mergeInto(&r.StartLag, s.StartLag)
		addTo(&r.Failures, s.Failures)
		r.CPUOfPods = append(r.CPUOfPods, s.CPU)
		if len(s.Versions) > 0 && r.Versions == nil {
			r.Versions = map[string]string{}
		}
		maps.Copy(r.Versions, s.Versions)
		r.CPU.Client += s.CPU.Client
		r.CPU.Used += s.CPU.Used
		r.CPU.Periods += s.CPU.Periods
		r.CPU.ThrottledPeriods += s.CPU.ThrottledPeriods
		r.TCP.Segments += s.TCP.Segments
		r.TCP.Retransmitted += s.TCP.Retransmitted
		var count int64
		for j := range s.Handshakes {
			h := &s.Handshakes[j]
			count += h.Count
			if kinds[h.Kind] == nil {
				kinds[h.Kind] = &Series{Kind: h.Kind}
			}
			kinds[h.Kind].Add(h)
		}
		r.PerSecond += float64(count) / s.Window().Seconds()
	}
	for _, k := range kinds {
		r.Handshakes = append(r.Handshakes, *k)
	}
	slices.SortFunc(r.Handshakes, func(a, b Series) int { return a.Kind.compare(b.Kind) })
	return r, nil
}

// Count is how many handshakes succeeded.
func (r Result) Count() int64 {
	var n int64
	for i := range r.Handshakes {
		n += r.Handshakes[i].Count
	}
	return n
}

// Total puts all kinds together that the choice takes: the full handshakes, say.
// Its kind is the zero value.
func (r Result) Total(choose func(Kind) bool) Series {
	var t Series
	for i := range r.Handshakes {
		if choose(r.Handshakes[i].Kind) {
			t.Add(&r.Handshakes[i])
		}
	}
	return t
}

// Add counts what another series saw, of whichever kind. It keeps nothing that
// belongs to that one.
func (s *Series) Add(other *Series) {
	s.Count += other.Count
	s.BytesSent += other.BytesSent
	s.BytesReceived += other.BytesReceived
	s.CertificateBytes += other.CertificateBytes
	s.ExchangeBytesSent += other.ExchangeBytesSent
	s.ExchangeBytesReceived += other.ExchangeBytesReceived
	from := other.histograms()
	for name, h := range s.histograms() {
		mergeInto(h, *from[name])
	}
}

func mergeInto(into **Histogram, h *Histogram) {
	if h == nil {
		return
	}
	if *into == nil {
		*into = &Histogram{}
	}
	(*into).Merge(h)
}

func addTo[K comparable](into *map[K]int64, counts map[K]int64) {
	if len(counts) > 0 && *into == nil {
		*into = map[K]int64{}
	}
	for k, n := range counts {
		(*into)[k] += n
	}
}

func (k Kind) compare(other Kind) int {
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(flag(k.Resumed), flag(other.Resumed)),
		cmp.Compare(k.Group, other.Group),
		cmp.Compare(k.SignatureAlgorithm, other.SignatureAlgorithm),
		cmp.Compare(k.Version, other.Version),
		cmp.Compare(flag(k.HelloRetry), flag(other.HelloRetry)),
	)
}
