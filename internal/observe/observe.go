// Package observe follows what the agents of gateway pods say that they run.
// One goroutine per pod waits for news in a long poll, so that the operator
// learns of a change at once and an idle cluster costs next to nothing.
package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"qtls.dev/qtls/internal/dataplane"
)

const (
	// poll is how long an agent holds a request without news.
	poll = 30 * time.Second
	// retryFirst to retryMost space the tries of an agent that does not answer.
	retryFirst, retryMost = 250 * time.Millisecond, 5 * time.Second
	// stale is how long requests to an agent may fail, or an answer be late: so
	// long its last status is believed.
	stale = 10 * time.Second
	// maxStatus bounds what is read of one answer, in bytes.
	maxStatus = 1 << 20
)

// ErrNotYet says that an agent has had no time to answer: no fault yet.
var ErrNotYet = errors.New("its agent has not answered yet")

// Pod is a gateway pod to follow.
type Pod struct {
	UID  types.UID
	Name string
	IP   string
}

// Observer follows the pods of many gateways. Its methods may be called from
// several goroutines.
type Observer struct {
	ctx     context.Context
	port    int
	client  func(gateway types.NamespacedName) *http.Client
	changed func(gateway types.NamespacedName)

	mu       sync.Mutex
	gateways map[types.NamespacedName]map[types.UID]*follower
}

type follower struct {
	pod    Pod
	cancel context.CancelFunc

	status *dataplane.Status
	err    error
	// since is when an answer was missed first, after the last that came; zero
	// while none is missed.
	since time.Time
	// silent agents have missed answers for stale or longer.
	silent bool
}

// New makes an Observer that lives as long as ctx. client is how the agents of
// a gateway are reached, at port; changed is called after a pod's status has
// changed, and must not block.
func New(ctx context.Context, port int, client func(types.NamespacedName) *http.Client, changed func(types.NamespacedName)) *Observer {
	return &Observer{ctx: ctx, port: port, client: client, changed: changed, gateways: map[types.NamespacedName]map[types.UID]*follower{}}
}

// Follow sets the pods of a gateway: new ones are followed from now on, those
// not named any more are let go. No pods: the gateway is forgotten.
func (o *Observer) Follow(gateway types.NamespacedName, pods []Pod) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.gateways[gateway]
	next := map[types.UID]*follower{}
	for _, p := range pods {
		if f := known[p.UID]; f != nil && f.pod == p {
			next[p.UID] = f
			delete(known, p.UID)
			continue
		}
		ctx, cancel := context.WithCancel(o.ctx)
		f := &follower{pod: p, cancel: cancel}
		next[p.UID] = f
		go o.follow(ctx, gateway, f)
	}
	for _, f := range known {
		f.cancel()
	}
	if len(next) == 0 {
		delete(o.gateways, gateway)
		return
	}
	o.gateways[gateway] = next
}

// Status is what the pod's agent said last, or why it is not known.
func (o *Observer) Status(gateway types.NamespacedName, pod types.UID) (*dataplane.Status, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.gateways[gateway][pod]
	switch {
	case f == nil:
		return nil, ErrNotYet
	case f.silent:
		return nil, f.err
	case f.status == nil:
		return nil, ErrNotYet
	}
	return f.status, nil
}

func (o *Observer) follow(ctx context.Context, gateway types.NamespacedName, f *follower) {
	retry := retryFirst
	for sequence := uint64(0); ctx.Err() == nil; {
		due := time.Now().Add(poll)
		status, err := o.ask(ctx, gateway, f.pod, sequence)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		o.mu.Lock()
		was, wasSilent := f.status, f.silent
		f.err = err
		switch {
		case err == nil:
			f.status, f.since = status, time.Time{}
		case f.since.IsZero() && due.Before(now): // it kept silent all the time
			f.since = due
		case f.since.IsZero():
			f.since = now
		}
		f.silent = err != nil && now.Sub(f.since) >= stale
		silent := f.silent
		o.mu.Unlock()
		if err != nil {
			if silent && !wasSilent {
				o.changed(gateway)
			}
			sequence = 0 // whoever answers next may be another process
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
			retry = min(2*retry, retryMost)
			continue
		}
		retry = retryFirst
		sequence = status.Sequence
		if was == nil || wasSilent || was.Sequence != status.Sequence {
			o.changed(gateway)
		}
	}
}

func (o *Observer) ask(ctx context.Context, gateway types.NamespacedName, pod Pod, after uint64) (*dataplane.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, poll+stale)
	defer cancel()
	u := url.URL{Scheme: "https", Host: net.JoinHostPort(pod.IP, strconv.Itoa(o.port)), Path: "/v1/status",
		RawQuery: url.Values{"after": {strconv.FormatUint(after, 10)}, "wait": {poll.String()}}.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := o.client(gateway).Do(request)
	if err != nil {
		return nil, fmt.Errorf("agent of pod %s: %w", pod.Name, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("agent of pod %s: HTTP status %s", pod.Name, response.Status)
	}
	var status dataplane.Status
	if err := json.NewDecoder(io.LimitReader(response.Body, maxStatus)).Decode(&status); err != nil {
		return nil, fmt.Errorf("agent of pod %s: status does not parse: %w", pod.Name, err)
	}
	if status.Pod != pod.Name {
		return nil, fmt.Errorf("agent of pod %s: answers as %q", pod.Name, status.Pod)
	}
	return &status, nil
}
