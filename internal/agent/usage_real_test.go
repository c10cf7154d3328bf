//go:build crypto

package agent

import (
	"encoding/json"
	"fmt"
	"testing"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/mtls"
)

func TestTheAgentTellsWhatHandshakesCost(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.runs(w.assignment.Stable)
	ask := func() dataplane.Usage {
		t.Helper()
		var u dataplane.Usage
		response, err := w.status.Get(fmt.Sprintf("https://127.0.0.1:%d%s", mtls.StatusPort, dataplane.UsagePath))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if err := json.NewDecoder(response.Body).Decode(&u); err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := ask()
	pq, _ := w.clients()
	const handshakes = 5
	for range handshakes {
		if _, _, err := pq.get("/"); err != nil {
			t.Fatal(err)
		}
	}
	after := ask()
	if n := after.TLSConnections - before.TLSConnections; n != handshakes {
		t.Errorf("%d TLS connections for %d handshakes", n, handshakes)
	}
	if after.Worker != before.Worker || after.CPU <= before.CPU || after.Time <= before.Time {
		t.Errorf("before %+v, after %+v", before, after)
	}
	t.Logf("%.0f µs of HAProxy's CPU a handshake, its request included", float64(after.CPU-before.CPU)/1000/handshakes)
}
