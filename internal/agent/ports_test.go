package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"testing"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy/runtime"
	"qtls.dev/qtls/internal/ticketstore/storetest"
)

func TestPortsOfAConfiguration(t *testing.T) {
	config := render(t, testGateway()).Config
	if got := portsOf(config); !slices.Equal(got, []int{dualPort, classicalPort}) {
		t.Errorf("ports: %v", got)
	}
	more := config + "frontend more\n    bind \"${QTLS_ADDRESS}\":8443 v4v6 ssl\n    bind :::8444 v4v6 ssl\n    bind 10.0.0.1:80\n    bind abns@qtls.x:y accept-proxy\n"
	if got := newPorts(more, config); !slices.Equal(got, []int{80, 8443, 8444}) {
		t.Errorf("new ports: %v", got)
	}
}

func TestOnlyPortsThatHAProxyCannotHoldAreTried(t *testing.T) {
	revision := func(config string) dataplane.Revision { return dataplane.Revision{Config: config} }
	next := install{revision: revision("    bind :::8443 v4v6\n    bind :::8444 v4v6\n")}
	a := New(Options{RunDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics()})
	runs, err := a.trees.write(revision("    bind :::8443 v4v6\n"), state{Target: dataplane.Target{Revision: "r"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what    string
		proxy   proxy
		current *tree
		want    []int
	}{
		{"nothing has run", proxy{}, nil, []int{8443, 8444}},
		{"HAProxy runs another configuration", proxy{up: true, tree: runs.Name}, nil, []int{8444}},
		{"it runs one that cannot be read back", proxy{up: true, tree: "gone-1"}, nil, nil},
		{"it runs one, and is to load another", proxy{up: true, tree: "gone-1"}, runs, nil},
		{"it starts", proxy{}, runs, nil},
	} {
		a.proxy, a.current = c.proxy, c.current
		if got := a.portsToBind(next); !slices.Equal(got, c.want) {
			t.Errorf("%s: tried are %v, want %v", c.what, got, c.want)
		}
	}
}

func TestAPortThatIsTakenIsNotBindable(t *testing.T) {
	port := storetest.FreePort(t)
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		t.Fatal(err)
	}
	var refused *runtime.Refusal
	if err := bindable([]int{port}); !errors.As(err, &refused) {
		t.Errorf("a port that is taken: %v", err)
	}
	l.Close()
	if err := bindable([]int{port}); err != nil {
		t.Errorf("a port that is free: %v", err)
	}
}
