package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/version"
)

// report puts up the status as it is now.
func (a *Agent) report() {
	running := a.running()
	s := statusOf(a.observed, a.own, running, a.unusable)
	s.Waiting = a.waiting()
	s.HSMProblems = a.memberProblems()
	s.Tickets = ticketStatusOf(a.observed, running, dataplane.TicketsSecretName(a.Gateway))
	a.status.put(s)
	a.Metrics.setState(s)
	if s.Tickets != nil {
		a.Metrics.tickets.Store(&ticketMetrics{s.Tickets.Epoch, running.Tickets.Since, a.clock})
	} else {
		a.Metrics.tickets.Store(nil)
	}
	a.Metrics.hsm.Store(a.hsm)
	if a.proxy.up {
		admin := a.trees.admin(a.proxy.tree)
		a.Metrics.setProxy(&admin)
	} else {
		a.Metrics.setProxy(nil)
	}
	a.health.setReady(a.proxy.up && s.Running.Revision != "")
	if a.current != nil {
		a.health.setStarted()
	}
}

// running is the tree that HAProxy runs, as far as it is known.
func (a *Agent) running() *tree {
	switch {
	case !a.proxy.up:
		return nil
	case a.current != nil && a.proxy.tree == a.current.Name:
		return a.current
	}
	t, err := a.trees.read(a.proxy.tree)
	if err != nil {
		return nil
	}
	return t
}

// statusOf is the status but for its sequence: a function of what is known.
func statusOf(in observed, me own, running *tree, broken *unusable) dataplane.Status {
	s := dataplane.Status{HAProxyVersion: in.proxy.version}
	shown := me.current
	if running != nil {
		s.Running, s.Reloads = running.Target, running.Reloads
		shown = running
	}
	if me.current != nil {
		s.Reloads = max(s.Reloads, me.current.Reloads)
	}
	switch {
	case broken != nil:
		s.Rejected = &dataplane.Rejection{Target: broken.Target, Message: broken.Message}
	case in.published != nil:
		if r := me.refusals.last(in.published.Target.Revision); r != nil {
			s.Rejected = &dataplane.Rejection{Target: in.published.Target, Message: r.Message, Time: r.Time}
		}
	}
	s.Certificates = certificatesOf(in, me, shown, running != nil)
	s.HSMKeys = keysInHSMs(running, me.current)
	if in.hsm != nil {
		for _, m := range in.hsm.Members {
			s.HSM = append(s.HSM, m.inStatus())
		}
	}
	return s
}

// certificatesOf tells of the certificates of the shown tree, and of those that
// a published revision still waits for. Where both have one of a name, what is
// wrong with the Secret is told as the published revision has it.
func certificatesOf(in observed, me own, shown *tree, served bool) (all []dataplane.CertificateStatus) {
	wanted, next := map[string]dataplane.Certificate{}, map[string]dataplane.Certificate{}
	if in.published != nil {
		for _, c := range in.published.Revision.Certificates {
			wanted[c.Name], next[c.Name] = c, c
		}
	}
	has := map[string]*certificate{}
	if shown != nil {
		for _, c := range shown.Revision.Certificates {
			wanted[c.Name], has[c.Name] = c, shown.Certificates[c.Name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		c := wanted[name]
		status := dataplane.CertificateStatus{Name: c.Name, Secret: c.Secret}
		if h := has[name]; h != nil && served {
			status.ResourceVersion, status.SerialNumber, status.NotAfter = h.ResourceVersion, h.SerialNumber, h.NotAfter
		}
		if n, ok := next[name]; ok {
			c = n
		}
		// What is about to be read is no problem.
		if _, problem := candidate(c, in, me); problem != "" && in.secrets[c.Secret] != (secret{}) {
			status.Error = problem
		}
		if status.SerialNumber != "" || status.Error != "" {
			all = append(all, status)
		}
	}
	return all
}

// waiting is what keeps the agent from running its target, or from knowing a
// newer one; empty when nothing does.
func (a *Agent) waiting() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(a.objectProblems)) {
		all = append(all, a.objectProblems[name])
	}
	if a.failing != "" {
		all = append(all, a.failing)
	}
	if len(all) == 0 && a.current != nil && !a.proxy.up {
		all = append(all, "HAProxy does not run")
	}
	return strings.Join(all, "; ")
}

// statusBoard holds the status for those who ask.
type statusBoard struct {
	mu      sync.Mutex
	status  dataplane.Status
	changed chan struct{} // closed at the next change
}

func newStatusBoard(pod string) *statusBoard {
	return &statusBoard{
		// The sequence goes on from one process of the agent to the next, so
		// that whoever has seen the former's status sees this one as news.
		status:  dataplane.Status{Pod: pod, Version: version.Version, Sequence: uint64(time.Now().UnixMilli())},
		changed: make(chan struct{}),
	}
}

func (b *statusBoard) put(s dataplane.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Pod, s.Version, s.Sequence = b.status.Pod, b.status.Version, b.status.Sequence
	if s.Rejected != nil && s.Rejected.Time.IsZero() {
		if was := b.status.Rejected; was != nil && was.Target == s.Rejected.Target && was.Message == s.Rejected.Message {
			s.Rejected.Time = was.Time
		} else {
			s.Rejected.Time = time.Now().UTC().Truncate(time.Second)
		}
	}
	if reflect.DeepEqual(s, b.status) {
		return
	}
	s.Sequence++
	b.status = s
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *statusBoard) get() (dataplane.Status, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status, b.changed
}

// maxWait bounds how long a request for news is held.
const maxWait = time.Minute

// ServeHTTP answers GET /v1/status?after=SEQUENCE&wait=DURATION: at once, or,
// where the sequence is still that, when it changes or the wait is over.
func (b *statusBoard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseUint(cmp.Or(r.URL.Query().Get("after"), "0"), 10, 64)
	if err != nil {
		http.Error(w, "after: a sequence number", http.StatusBadRequest)
		return
	}
	wait, err := time.ParseDuration(cmp.Or(r.URL.Query().Get("wait"), "0s"))
	if err != nil || wait < 0 || wait > maxWait {
		http.Error(w, fmt.Sprintf("wait: a duration from 0s to %s", maxWait), http.StatusBadRequest)
		return
	}
	status, changed := b.get()
	if status.Sequence == after && wait > 0 {
		select {
		case <-changed:
		case <-time.After(wait):
		case <-r.Context().Done():
			return
		}
		status, _ = b.get()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(status) // its one error is that the reader is gone
}
