package haproxy

import (
	"slices"
	"testing"

	"qtls.dev/qtls/internal/haproxy/runtime"
)

func TestConnectionsThatWaitForTheirBind(t *testing.T) {
	proxies := func(port, classical, postQuantum, passed int) []runtime.Proxy {
		return []runtime.Proxy{
			{Name: "port.443", Frontend: true, Sessions: port},
			{Name: "to.web.ml-dsa-65", Sessions: 9},
			{Name: "to.web.classical", Sessions: 9},
			{Name: "listener.web.ml-dsa-65", Frontend: true, Sessions: postQuantum},
			{Name: "listener.web.classical", Frontend: true, Sessions: classical},
			{Name: "backend.web", Sessions: 9},
			{Name: "backend.through", Sessions: passed},
			// Another port, whose connections are handed on to nobody.
			{Name: "listener.direct.classical", Frontend: true, Sessions: 7},
			{Name: "backend.direct", Sessions: 7},
		}
	}
	for name, c := range map[string]struct {
		proxies []runtime.Proxy
		want    int
	}{
		"none":                              {proxies(12, 5, 4, 3), 0},
		"some":                              {proxies(20, 5, 4, 3), 8},
		"fewer than those that have ended":  {proxies(11, 5, 4, 3), 0},
		"all, before a hello has been read": {proxies(5, 0, 0, 0), 5},
	} {
		if frontends, got := Selections(c.proxies); got != c.want || !slices.Equal(frontends, []string{"port.443"}) {
			t.Errorf("%s: %d in %v, want %d", name, got, frontends, c.want)
		}
	}
}
