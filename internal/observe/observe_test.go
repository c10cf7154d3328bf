package observe

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"qtls.dev/qtls/internal/dataplane"
)

// agent answers as a gateway pod's agent does: at once when it has news, else
// after the wait.
type agent struct {
	mu     sync.Mutex
	status dataplane.Status
	news   chan struct{}
}

func (a *agent) say(change func(*dataplane.Status)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.status)
	a.status.Sequence++
	close(a.news)
	a.news = make(chan struct{})
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	a.mu.Lock()
	status, news := a.status, a.news
	a.mu.Unlock()
	if status.Sequence <= after {
		select {
		case <-news:
		case <-r.Context().Done():
			return
		}
		a.mu.Lock()
		status = a.status
		a.mu.Unlock()
	}
	_ = json.NewEncoder(w).Encode(status)
}

var gateway = types.NamespacedName{Namespace: "ns", Name: "web"}

func start(t *testing.T, handler http.Handler) (*Observer, Pod, chan types.NamespacedName) {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	host, portText, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel) // before the server closes: a long poll is open
	changed := make(chan types.NamespacedName, 100)
	o := New(ctx, port, func(types.NamespacedName) *http.Client { return server.Client() }, func(n types.NamespacedName) { changed <- n })
	return o, Pod{UID: "u1", Name: "web-1", IP: host}, changed
}

func await(t *testing.T, changed <-chan types.NamespacedName) {
	t.Helper()
	select {
	case n := <-changed:
		if n != gateway {
			t.Fatalf("change of %s, want %s", n, gateway)
		}
	case <-time.After(time.Minute):
		t.Fatal("no change was reported")
	}
}

func TestNewsArrivesAtOnce(t *testing.T) {
	a := &agent{status: dataplane.Status{Pod: "web-1", Sequence: 1}, news: make(chan struct{})}
	o, pod, changed := start(t, a)
	if _, err := o.Status(gateway, pod.UID); err == nil {
		t.Fatal("a pod that is not followed has a status")
	}
	o.Follow(gateway, []Pod{pod})
	await(t, changed)
	want := dataplane.Target{Revision: "r", Generation: 7}
	a.say(func(s *dataplane.Status) { s.Running = want })
	await(t, changed)
	status, err := o.Status(gateway, pod.UID)
	if err != nil || status.Running != want {
		t.Fatalf("status %+v, %v, want running %+v", status, err, want)
	}
	select {
	case <-changed:
		t.Error("a change was reported without news")
	case <-time.After(200 * time.Millisecond):
	}
}

func TestAPodThatIsNoLongerNamedIsForgotten(t *testing.T) {
	a := &agent{status: dataplane.Status{Pod: "web-1", Sequence: 1}, news: make(chan struct{})}
	o, pod, changed := start(t, a)
	o.Follow(gateway, []Pod{pod})
	await(t, changed)
	o.Follow(gateway, nil)
	if _, err := o.Status(gateway, pod.UID); err == nil {
		t.Error("its status is still given")
	}
	if len(o.gateways) != 0 {
		t.Errorf("%d gateways are kept, want none", len(o.gateways))
	}
}

func TestAnAgentThatCannotBeBelievedSaysWhy(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		says    string
	}{
		{"it refuses", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "403"},
		{"it answers for another pod", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"pod":"other","sequence":1}`)) }, `answers as "other"`},
		{"it talks nonsense", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`<html>`)) }, "does not parse"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, pod, changed := start(t, tc.handler)
			o.Follow(gateway, []Pod{pod})
			if _, err := o.Status(gateway, pod.UID); !errors.Is(err, ErrNotYet) {
				t.Errorf("at first: %v, want ErrNotYet", err)
			}
			o.mu.Lock()
			o.gateways[gateway][pod.UID].answered = time.Now().Add(-stale) // as if it were asked long ago
			o.mu.Unlock()
			await(t, changed)
			if _, err := o.Status(gateway, pod.UID); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("after a while: %v, want what says %q", err, tc.says)
			}
		})
	}
}
