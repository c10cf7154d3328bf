package observe

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
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

// answer is how an agent answers one request, on a clock of the test's.
type answer func(r *http.Request) (*http.Response, error)

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func says(code int, body string) answer {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Status: strconv.Itoa(code), Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

// alive answers at once.
var alive = says(http.StatusOK, `{"pod":"web-1","sequence":1}`)

// idle answers who knows its status when the poll is over: it has no news.
func idle(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("after") == "0" {
		return alive(r)
	}
	select {
	case <-time.After(poll):
		return alive(r)
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func refuses(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }

// vanished is an agent whose node is gone: nothing comes back.
func vanished(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// follow runs a test with an observer that follows one pod, whose agent may
// change how it answers.
func follow(t *testing.T, first answer, test func(t *testing.T, status func() (*dataplane.Status, error), become func(answer), changes *atomic.Int32)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait() // until it has gone
		defer cancel()
		var now atomic.Pointer[answer]
		become := func(a answer) { now.Store(&a) }
		become(first)
		client := &http.Client{Transport: answer(func(r *http.Request) (*http.Response, error) { return (*now.Load())(r) })}
		var changes atomic.Int32
		o := New(ctx, 8404, func(types.NamespacedName) *http.Client { return client }, func(types.NamespacedName) { changes.Add(1) })
		o.Follow(gateway, []Pod{{UID: "u1", Name: "web-1", IP: "10.0.0.1"}})
		synctest.Wait()
		test(t, func() (*dataplane.Status, error) {
			synctest.Wait()
			return o.Status(gateway, "u1")
		}, become, &changes)
	})
}

func TestAnAgentThatCannotBeBelievedSaysWhy(t *testing.T) {
	for _, tc := range []struct {
		name  string
		agent answer
		says  string
	}{
		{"it refuses", says(http.StatusForbidden, ""), "403"},
		{"it answers for another pod", says(http.StatusOK, `{"pod":"other","sequence":1}`), `answers as "other"`},
		{"it talks nonsense", says(http.StatusOK, `<html>`), "does not parse"},
		{"it cannot be reached", refuses, "connection refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			follow(t, tc.agent, func(t *testing.T, status func() (*dataplane.Status, error), _ func(answer), changes *atomic.Int32) {
				if _, err := status(); !errors.Is(err, ErrNotYet) {
					t.Errorf("at first: %v, want ErrNotYet", err)
				}
				time.Sleep(stale + retryMost)
				if _, err := status(); err == nil || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("after a while: %v, want what says %q", err, tc.says)
				}
				if n := changes.Load(); n != 1 {
					t.Errorf("%d changes are reported, want 1", n)
				}
			})
		})
	}
}

// An agent that is started anew refuses connections for a moment, most likely
// long after it has last answered: it had no news.
func TestAnAgentThatComesBackSoonWasNeverSilent(t *testing.T) {
	follow(t, func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("after") == "0" {
			return alive(r)
		}
		time.Sleep(poll - time.Second)
		return nil, syscall.ECONNRESET
	}, func(t *testing.T, status func() (*dataplane.Status, error), become func(answer), changes *atomic.Int32) {
		time.Sleep(poll - time.Second)
		become(refuses)
		for range 8 {
			if s, err := status(); err != nil || s.Sequence != 1 {
				t.Fatalf("status %v, %v; want the last one", s, err)
			}
			time.Sleep(time.Second)
		}
		become(idle)
		time.Sleep(3 * poll)
		if s, err := status(); err != nil || s.Sequence != 1 {
			t.Errorf("status %v, %v, when it has answered again", s, err)
		}
		if n := changes.Load(); n != 1 {
			t.Errorf("%d changes are reported, want that of the first answer alone", n)
		}
	})
}

func TestAnAgentThatStaysAwayIsSilent(t *testing.T) {
	for _, tc := range []struct {
		name string
		away answer
		// The last status is believed for so long, and not for longer than most.
		believed, most time.Duration
	}{
		{"it refuses connections", refuses, stale, stale + retryMost},
		// A request may be held for poll.
		{"its node is gone", vanished, poll, poll + stale + retryMost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			follow(t, idle, func(t *testing.T, status func() (*dataplane.Status, error), become func(answer), changes *atomic.Int32) {
				become(tc.away)
				time.Sleep(poll) // the open request is answered still
				if s, err := status(); err != nil || s.Sequence != 1 {
					t.Fatalf("status %v, %v; want the one that came", s, err)
				}
				time.Sleep(tc.believed - time.Second)
				if s, err := status(); err != nil || s.Sequence != 1 {
					t.Errorf("status %v, %v; want the last one for a while", s, err)
				}
				time.Sleep(tc.most - tc.believed + time.Second)
				if s, err := status(); err == nil || errors.Is(err, ErrNotYet) {
					t.Errorf("status %v, %v; want why it is not known", s, err)
				}
				if n := changes.Load(); n != 2 {
					t.Errorf("%d changes are reported, want the first answer and the silence", n)
				}
				become(idle)
				time.Sleep(2 * (poll + stale))
				if s, err := status(); err != nil || s.Sequence != 1 {
					t.Errorf("status %v, %v, when it is back", s, err)
				}
				if n := changes.Load(); n != 3 {
					t.Errorf("%d changes are reported, want a third for its return", n)
				}
			})
		})
	}
}
