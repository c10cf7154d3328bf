package agent

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

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
