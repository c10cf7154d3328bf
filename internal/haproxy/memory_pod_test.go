//go:build crypto

package haproxy

import (
	"fmt"
	"testing"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
)

// HAProxy is the one that makes connections of descriptors: as many as half of
// them, but for the few that it needs itself.
func TestHAProxyTakesConnectionsForItsDescriptors(t *testing.T) {
	backend := endpoint(t, mirror(t, "one"))
	for _, memory := range []int64{128 << 20, 256 << 20} {
		t.Run(fmt.Sprintf("%d MiB", memory>>20), func(t *testing.T) {
			p := newPod(t)
			p.limit = Descriptors(memory)
			ecdsa := p.certificate(newIssuer(t, "ECDSA-P256"), "ECDSA-P256", anyScheme, host)
			p.start(gateway(prefer, model.Port{Number: port, Listeners: []model.Listener{
				with(https("web", nil, ecdsa), func(l *model.Listener) { l.Backends = []model.Backend{{Group: "mirror:1", Weight: 1}} })}}),
				dataplane.Endpoints{"mirror:1": {backend}})
			for _, worker := range []string{"the first worker", "the next"} {
				info, err := p.admin().Info(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if most := int(p.limit / 2); info.MaxConnections > most || info.MaxConnections < most/2 {
					t.Errorf("%s takes %d connections, want nearly %d", worker, info.MaxConnections, most)
				}
				if _, err := p.get(port, nil); err != nil {
					t.Errorf("%s: %v", worker, err)
				}
				p.reload()
			}
		})
	}
}
