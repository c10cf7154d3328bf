package main

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Summary counts what became of many connections.
type Summary struct {
	Client    string        `json:"client"`
	Total     int           `json:"total"`
	Succeeded int           `json:"succeeded"`
	Failed    int           `json:"failed"`
	Seconds   float64       `json:"seconds"`
	ByClass   map[Class]int `json:"byClass"`
	// Of those that succeeded.
	ByGroup       map[string]int `json:"byGroup"`
	ByAlgorithm   map[string]int `json:"byAlgorithm"`
	BySerial      map[string]int `json:"bySerial"`
	ByPod         map[string]int `json:"byPod,omitempty"`
	HandshakeP50  float64        `json:"handshakeP50Ms"`
	HandshakeP99  float64        `json:"handshakeP99Ms"`
	HandshakeMost float64        `json:"handshakeMaxMs"`
	// Returning had a session ticket, and of those Resumed were taken for who they are. Tickets says so for each pair of
	// addresses: where the ticket is from, and where it was brought.
	Returning int                          `json:"returning,omitempty"`
	Resumed   int                          `json:"resumed,omitempty"`
	Tickets   map[string]map[string]*Tally `json:"tickets,omitempty"`
	// Failures are the first few, with the second in which each came.
	Failures []Failure `json:"failures,omitempty"`
}

// Failure is one connection that failed.
type Failure struct {
	Time  time.Time `json:"time"`
	Class Class     `json:"class"`
	Error string    `json:"error"`
	MS    float64   `json:"ms"`
}

// Tally of connections with a session ticket.
type Tally struct {
	Returning int `json:"returning"`
	Resumed   int `json:"resumed"`
}

// failuresShown bounds Summary.Failures.
const failuresShown = 20

// load makes new connections until there were o.total of them and, with o.untilStdin, in has ended; or ctx ends.
func load(ctx context.Context, o options, in io.Reader) Summary {
	var over atomic.Bool
	over.Store(!o.untilStdin)
	if o.untilStdin {
		go func() {
			_, _ = io.Copy(io.Discard, in) // an error is an end, too
			over.Store(true)
		}()
	}
	start := time.Now()
	turns := make(chan struct{})
	go func() {
		defer close(turns)
		for i := 0; i < o.total || !over.Load(); i++ {
			if o.rate > 0 {
				// The i-th connection has its own time, so that a slow one does not lower the rate.
				due := start.Add(time.Duration(float64(i) / o.rate * float64(time.Second)))
				sleep(ctx, time.Until(due))
			}
			select {
			case turns <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	results := make(chan Result)
	var workers sync.WaitGroup
	for range o.concurrency {
		workers.Go(func() {
			if o.resume {
				comeBack(ctx, o, turns, results)
				return
			}
			for range turns {
				results <- attempt(context.WithoutCancel(ctx), o, o.addresses[0])
			}
		})
	}
	go func() { workers.Wait(); close(results) }()
	return summarise(results, start)
}

// comeBack is one client: each connection brings the ticket of the one before, if that gave any.
func comeBack(ctx context.Context, o options, turns <-chan struct{}, results chan<- Result) {
	tickets := &wallet{}
	o.config = o.config.Clone()
	o.config.ClientSessionCache = tickets
	issuer := ""
	for range turns {
		address := o.addresses[rand.IntN(len(o.addresses))] // as a load balancer does
		had := tickets.holds()
		r := attempt(context.WithoutCancel(ctx), o, address)
		if had {
			r.Issuer, r.Acceptor = issuer, address
		}
		if tickets.took() {
			issuer = address
		}
		results <- r
	}
}

func summarise(results <-chan Result, start time.Time) Summary {
	s := Summary{ByClass: map[Class]int{}, ByGroup: map[string]int{}, ByAlgorithm: map[string]int{}, BySerial: map[string]int{}, ByPod: map[string]int{}}
	var times []float64
	for r := range results {
		s.Client = r.Client
		s.Total++
		s.ByClass[r.Class]++
		if !r.OK {
			s.Failed++
			if len(s.Failures) < failuresShown {
				s.Failures = append(s.Failures, Failure{time.Now(), r.Class, r.Error, r.TotalMS})
			}
			continue
		}
		s.Succeeded++
		if r.Issuer != "" {
			s.tally(r)
		}
		times = append(times, r.HandshakeMS)
		s.ByGroup[r.Group]++
		if r.Pod != "" {
			s.ByPod[r.Pod]++
		}
		if c := r.Certificate; c != nil {
			s.ByAlgorithm[c.Algorithm]++
			s.BySerial[c.SerialNumber]++
		}
	}
	s.Seconds = time.Since(start).Seconds()
	slices.Sort(times)
	s.HandshakeP50, s.HandshakeP99, s.HandshakeMost = quantile(times, 0.5), quantile(times, 0.99), quantile(times, 1)
	return s
}

func (s *Summary) tally(r Result) {
	if s.Tickets == nil {
		s.Tickets = map[string]map[string]*Tally{}
	}
	from := s.Tickets[r.Issuer]
	if from == nil {
		from = map[string]*Tally{}
		s.Tickets[r.Issuer] = from
	}
	t := from[r.Acceptor]
	if t == nil {
		t = &Tally{}
		from[r.Acceptor] = t
	}
	s.Returning++
	t.Returning++
	if r.Resumed {
		s.Resumed++
		t.Resumed++
	}
}

// quantile of sorted values: the smallest that at least the share q of them does not exceed. Of none it is 0.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
