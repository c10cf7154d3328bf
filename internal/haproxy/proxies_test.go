package haproxy

import (
	"slices"
	"testing"

	"qtls.dev/qtls/internal/haproxy/runtime"
)

func TestConnectionsThatWaitForTheirBind(t *testing.T) {
	for name, c := range map[string]struct {
		port, toPostQuantum, postQuantum, toClassical, classical, passed int
		want                                                             int
	}{
		"none":                                  {12, 4, 4, 5, 5, 3, 0},
		"for their hello":                       {20, 4, 4, 5, 5, 3, 8},
		"for a bind":                            {20, 4, 4, 13, 5, 3, 8},
		"for both":                              {20, 6, 4, 7, 5, 3, 8},
		"a client that has gone":                {11, 4, 5, 4, 4, 3, 0},
		"some of an old worker's beside them":   {20, 4, 40, 5, 5, 3, 8},
		"all, and nobody has got further":       {5, 0, 0, 0, 0, 0, 5},
		"fewer than those that are passed on":   {2, 0, 0, 0, 0, 3, 0},
		"none, while others' requests are open": {0, 0, 9, 0, 9, 0, 0},
	} {
		proxies := []runtime.Proxy{
			{Name: "port.443", Frontend: true, Sessions: c.port},
			{Name: "to.web.ml-dsa-65", Sessions: c.toPostQuantum},
			{Name: "to.web.classical", Sessions: c.toClassical},
			{Name: "listener.web.ml-dsa-65", Frontend: true, Sessions: c.postQuantum},
			{Name: "listener.web.classical", Frontend: true, Sessions: c.classical},
			{Name: "backend.web", Sessions: 9},
			{Name: "backend.through", Sessions: c.passed},
			// Another port, whose connections are handed on to nobody.
			{Name: "listener.direct.classical", Frontend: true, Sessions: 7},
			{Name: "backend.direct", Sessions: 7},
		}
		if frontends, got := Selections(proxies); got != c.want || !slices.Equal(frontends, []string{"port.443"}) {
			t.Errorf("%s: %d in %v, want %d", name, got, frontends, c.want)
		}
	}
}
