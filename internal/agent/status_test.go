package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"qtls.dev/qtls/internal/dataplane"
)

func ask(t *testing.T, b *statusBoard, query string) (dataplane.Status, int) {
	t.Helper()
	w := httptest.NewRecorder()
	b.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/status?"+query, nil))
	var s dataplane.Status
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
	}
	return s, w.Code
}

func TestTheStatusIsNewsOnce(t *testing.T) {
	b := newStatusBoard("web-1")
	running := dataplane.Status{Running: dataplane.Target{Revision: "a", Generation: 1}}
	b.put(running)
	first, _ := ask(t, b, "")
	if first.Pod != "web-1" || first.Running != running.Running || first.Version == "" {
		t.Errorf("status: %+v", first)
	}
	b.put(running)
	if again, _ := ask(t, b, ""); again.Sequence != first.Sequence {
		t.Error("the same status is told as news")
	}
	b.put(dataplane.Status{})
	if later, _ := ask(t, b, ""); later.Sequence <= first.Sequence {
		t.Errorf("sequence %d after %d", later.Sequence, first.Sequence)
	}
}

func TestTheStatusWaitsForNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose clock only goes on when all wait
		b := newStatusBoard("web-1")
		now, _ := ask(t, b, "")
		query := func(after uint64, wait string) string {
			return "after=" + encode(t, after) + "&wait=" + wait
		}

		started := time.Now()
		if s, _ := ask(t, b, query(now.Sequence, "50ms")); s.Sequence != now.Sequence || time.Since(started) != 50*time.Millisecond {
			t.Errorf("without news, answered after %s of a wait of 50ms", time.Since(started))
		}
		started = time.Now()
		if _, _ = ask(t, b, query(now.Sequence+1, "10s")); time.Since(started) != 0 {
			t.Error("a reader that saw another process' status has to wait")
		}
		go func() {
			time.Sleep(50 * time.Millisecond)
			b.put(dataplane.Status{Waiting: "x"})
		}()
		started = time.Now()
		if s, _ := ask(t, b, query(now.Sequence, "10s")); s.Waiting != "x" || time.Since(started) != 50*time.Millisecond {
			t.Errorf("news of after 50ms came after %s: %+v", time.Since(started), s)
		}
		for _, bad := range []string{"after=x", "wait=x", "wait=-1s", "wait=2m"} {
			if _, code := ask(t, b, bad); code != http.StatusBadRequest {
				t.Errorf("%s: %d", bad, code)
			}
		}
	})
}

func TestARejectionKeepsItsTime(t *testing.T) {
	b := newStatusBoard("web-1")
	rejection := func() dataplane.Status {
		return dataplane.Status{Rejected: &dataplane.Rejection{Message: "no"}}
	}
	b.put(rejection())
	first, _ := ask(t, b, "")
	if first.Rejected.Time.IsZero() {
		t.Fatal("a rejection without a time")
	}
	b.put(rejection())
	if again, _ := ask(t, b, ""); again.Sequence != first.Sequence {
		t.Error("the same rejection is told as news")
	}
}
