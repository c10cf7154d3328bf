package haproxy

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"qtls.dev/qtls/internal/dataplane"
)

var twoGroups = dataplane.Revision{Backends: []dataplane.Backend{
	{Name: "backend.web", HTTP: true, Groups: []dataplane.ServerGroup{{Name: "shop:http", Weight: 3}, {Name: "canary:http", Weight: 1}}},
	{Name: "backend.api", HTTP: true, Groups: []dataplane.ServerGroup{{Name: "shop:http", Weight: 1}}},
}}

func addresses(from, to int) (list []dataplane.Endpoint) {
	for n := from; n < to; n++ {
		list = append(list, dataplane.Endpoint{Address: fmt.Sprintf("10.0.%d.%d", n/256, n%256), Port: 8080})
	}
	return list
}

func held(slots []Slot) (list []string) {
	for _, s := range slots {
		if s.Endpoint == nil {
			list = append(list, "-")
		} else {
			list = append(list, s.Endpoint.Address)
		}
	}
	return list
}

func TestAnEndpointKeepsItsSlot(t *testing.T) {
	first := Assign(twoGroups, nil, dataplane.Endpoints{"shop:http": addresses(1, 5)})
	if diff := cmp.Diff([]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "-", "-", "-", "-"}, held(first["shop:http"])); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	// 1 and 3 go, 9 comes, and the order is another. 9 takes none of the slots
	// that have just become free: it is there before those go.
	next := Assign(twoGroups, first, dataplane.Endpoints{"shop:http": append(addresses(9, 10), addresses(4, 5)[0], addresses(2, 3)[0])})
	if diff := cmp.Diff([]string{"-", "10.0.0.2", "-", "10.0.0.4", "10.0.0.9", "-", "-", "-"}, held(next["shop:http"])); diff != "" {
		t.Errorf("next (-want +got):\n%s", diff)
	}
}

func TestAGroupGrowsToTwiceItsEndpoints(t *testing.T) {
	var slots Slots
	for _, tc := range []struct{ endpoints, slots int }{{0, 8}, {8, 8}, {9, 32}, {5, 32}, {32, 32}, {33, 128}, {300, 1024}, {0, 1024}} {
		slots = Assign(twoGroups, slots, dataplane.Endpoints{"shop:http": addresses(0, tc.endpoints)})
		if got := len(slots["shop:http"]); got != tc.slots {
			t.Errorf("%d endpoints: %d slots, want %d", tc.endpoints, got, tc.slots)
		}
	}
}

// Where there can be no reload, one group that outgrows its slots keeps no other
// from its endpoints, and has as many as fit.
func TestWhatFitsNeedsNoReload(t *testing.T) {
	before := Assign(twoGroups, nil, dataplane.Endpoints{"shop:http": addresses(1, 5), "canary:http": addresses(100, 101)})
	now := dataplane.Endpoints{"shop:http": addresses(3, 13), "canary:http": addresses(101, 102)}
	after := Fit(twoGroups, before, now)
	if diff := cmp.Diff([]string{"10.0.0.9", "10.0.0.10", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8"}, held(after["shop:http"])); diff != "" {
		t.Errorf("the group that outgrows its slots (-want +got):\n%s", diff)
	}
	if got := held(after["canary:http"])[:2]; got[0] != "-" || got[1] != "10.0.0.101" {
		t.Errorf("another group: %v", got)
	}
	if _, ok := Changes(twoGroups, before, after); !ok {
		t.Error("it needs a reload")
	}
	if changes, ok := Changes(twoGroups, after, Fit(twoGroups, after, now)); !ok || len(changes) > 0 {
		t.Errorf("what fits already moves: %v, %v", changes, ok)
	}
	roomy := dataplane.Endpoints{"shop:http": addresses(3, 6)}
	if diff := cmp.Diff(Assign(twoGroups, before, roomy), Fit(twoGroups, before, roomy)); diff != "" {
		t.Errorf("where all fit (-as assigned +as fitted):\n%s", diff)
	}
}

// An application that is rolled has up to twice its pods for a while.
func TestANewGroupHasRoomForTwiceItsEndpoints(t *testing.T) {
	for n := range 100 {
		before := Assign(twoGroups, nil, dataplane.Endpoints{"shop:http": addresses(0, n)})
		after := Assign(twoGroups, before, dataplane.Endpoints{"shop:http": addresses(0, 2*n)})
		if _, ok := Changes(twoGroups, before, after); !ok {
			t.Errorf("from %d endpoints to twice as many needs a reload", n)
		}
	}
}

func TestGroupsThatAreNotNamedAreLeftOut(t *testing.T) {
	slots := Assign(twoGroups, Slots{"gone:http": make([]Slot, 8)}, dataplane.Endpoints{"other:http": addresses(0, 1)})
	if len(slots) != 2 || slots["shop:http"] == nil || slots["canary:http"] == nil {
		t.Errorf("slots %v", slots)
	}
}

func TestChangesAreMadeInEachBackendOfAGroup(t *testing.T) {
	one := dataplane.Endpoints{"shop:http": addresses(1, 3)}
	before := Assign(twoGroups, nil, one)
	after := Assign(twoGroups, before, dataplane.Endpoints{"shop:http": addresses(2, 4), "canary:http": addresses(7, 8)})
	changes, ok := Changes(twoGroups, before, after)
	e := func(n int) *dataplane.Endpoint { return &addresses(n, n+1)[0] }
	want := []Change{
		{"backend.web", "g1-1", nil},
		{"backend.web", "g1-3", e(3)},
		{"backend.web", "g2-1", e(7)},
		{"backend.api", "g1-1", nil},
		{"backend.api", "g1-3", e(3)},
	}
	if diff := cmp.Diff(want, changes); diff != "" || !ok {
		t.Errorf("ok %v, changes (-want +got):\n%s", ok, diff)
	}
	if changes, ok := Changes(twoGroups, after, after); !ok || len(changes) > 0 {
		t.Errorf("from itself to itself: %v, %v", changes, ok)
	}
	grown := Assign(twoGroups, before, dataplane.Endpoints{"shop:http": addresses(0, 9)})
	if _, ok := Changes(twoGroups, before, grown); ok {
		t.Error("a group that grows needs a reload")
	}
}

// However endpoints come and go: each has one slot, none is lost, none stays
// that went, and the changes lead from one state to the next.
func TestAssignmentsAreSound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var slots Slots
	state := map[string]*dataplane.Endpoint{}
	for step := range 500 {
		var now []dataplane.Endpoint
		for _, e := range addresses(0, 40) {
			if random.IntN(3) == 0 {
				now = append(now, e)
			}
		}
		random.Shuffle(len(now), func(i, j int) { now[i], now[j] = now[j], now[i] })
		next := Assign(twoGroups, slots, dataplane.Endpoints{"shop:http": now})
		if changes, ok := Changes(twoGroups, slots, next); ok {
			for _, c := range changes {
				state[c.Backend+"/"+c.Server] = c.Endpoint
			}
		} else { // a reload reads all
			state = map[string]*dataplane.Endpoint{}
			for n, s := range next["shop:http"] {
				state["backend.web/"+ServerName(0, n)] = s.Endpoint
			}
		}
		placed := map[dataplane.Endpoint]int{}
		for n, s := range next["shop:http"] {
			if s.Endpoint != nil {
				placed[*s.Endpoint]++
			}
			if !sameEndpoint(state["backend.web/"+ServerName(0, n)], s.Endpoint) {
				t.Fatalf("step %d: server %d is %v, want %v", step, n, state["backend.web/"+ServerName(0, n)], s.Endpoint)
			}
		}
		for _, e := range now {
			if placed[e] != 1 {
				t.Fatalf("step %d: endpoint %v has %d slots", step, e, placed[e])
			}
			delete(placed, e)
		}
		if len(placed) > 0 {
			t.Fatalf("step %d: slots for %v, which are gone", step, placed)
		}
		slots = next
	}
}

func TestEndpointsThatAreNoAddressesTakeNoSlot(t *testing.T) {
	good := dataplane.Endpoint{Address: "fd00::1", Port: 443}
	slots := Assign(twoGroups, nil, dataplane.Endpoints{"shop:http": {
		{Address: "10.0.0.1 check", Port: 80}, {Address: "shop.example.com", Port: 80}, {Address: "10.0.0.1\n    bind :80", Port: 80},
		{Address: "fe80::1%eth0", Port: 80}, {Address: "10.0.0.2", Port: 0}, {Address: "10.0.0.2", Port: 65536}, {Address: "", Port: 80}, good,
	}})
	if got := held(slots["shop:http"])[:2]; got[0] != good.Address || got[1] != "-" {
		t.Errorf("slots %v; want %v alone", got, good)
	}
}

func TestBackendsHoldAllSlots(t *testing.T) {
	text := Backends(twoGroups, Assign(twoGroups, nil, dataplane.Endpoints{"shop:http": {{Address: "fd00::1", Port: 443}}}))
	for _, want := range []string{
		"backend backend.web from http\n", "server g1-1 [fd00::1]:443 weight 3\n", "server g1-8 0.0.0.0:1 weight 3 disabled\n",
		"server g2-1 0.0.0.0:1 weight 1 disabled\n", "backend backend.api from http\n", "server g1-1 [fd00::1]:443 weight 1\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "    server "); n != 24 {
		t.Errorf("%d servers, want 8 for each of 3 groups", n)
	}
}
