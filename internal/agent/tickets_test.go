package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/tickets"
	"qtls.dev/qtls/internal/ticketstore"
)

const (
	testRing  = "0123456789abcdef"
	otherRing = "fedcba9876543210"
	rotation  = 7200 // seconds
)

var (
	epoch5 = tickets.New(5)
	epoch6 = epoch5.Next(6)
	epoch9 = tickets.New(9) // after 6, everything was dropped
	mine   = tickets.New(0)
	spare  = tickets.New(0)
)

// keyNames are those of the keys in the tests.
var keyNames = func() map[tickets.Key]string {
	names := map[tickets.Key]string{}
	for name, r := range map[string]tickets.Ring{"own": mine, "spare": spare, "five": epoch5, "nine": epoch9} {
		for i, k := range r.Keys {
			names[k] = fmt.Sprintf("%s%d", name, i+1)
		}
	}
	names[epoch6.Keys[2]] = "six"
	return names
}()

func keysTold(k ticketKeys) string {
	var names []string
	for _, key := range k.Keys {
		names = append(names, keyNames[key])
	}
	return fmt.Sprintf("epoch %d: %s", k.Epoch, strings.Join(names, " "))
}

func resuming(r dataplane.Revision, ring string) dataplane.Revision {
	r.Tickets = &dataplane.Tickets{Ring: ring, RotationSeconds: rotation,
		Files: []dataplane.TicketFile{{Name: "web", Scope: "a"}, {Name: "classic", Scope: "b"}}}
	return r
}

// resumes is a pod that runs with epoch 5 of its ring, at an hour of its clock.
func resumes() situation {
	s := settled()
	r := resuming(firstRevision, testRing)
	s.published = want(r, 1, here)
	s.current.Revision, s.current.Target = r, s.published.Target
	s.now = time.Hour
	s.current.Tickets = &ticketKeys{ID: testRing, Ring: epoch5, Until: 3 * time.Hour, Since: 30 * time.Minute}
	s.access = &dataplane.TicketAccess{Store: &ticketstore.Connection{}, Rings: map[string]dataplane.RingAccess{testRing: {}, otherRing: {}}}
	s.rings = map[string]seenRing{testRing: {Ring: epoch5, until: 4 * time.Hour}}
	s.spare = spare
	return s
}

func TestDecideOnTickets(t *testing.T) {
	floor := func(s *situation, least uint64) { s.access.Rings[testRing] = dataplane.RingAccess{LeastEpoch: least} }
	sees := func(s *situation, r tickets.Ring) { s.rings[testRing] = seenRing{Ring: r, until: 4 * time.Hour} }
	unseen := func(s *situation) { s.rings[testRing] = seenRing{problem: "away"} }
	ownKeys := func(s *situation) {
		s.current.Tickets = &ticketKeys{ID: testRing, Ring: mine, Since: s.now - time.Minute}
		unseen(s)
	}
	first := func(s *situation) { s.current, s.proxy = nil, proxy{} }
	for _, c := range []struct {
		name   string
		change func(*situation)
		want   string
	}{
		{"the ring is in use", func(*situation) {}, "nothing"},
		{"no session is resumed", func(s *situation) { *s = settled(); s.spare = spare }, "nothing"},

		// Rotation.
		{"a newer epoch is set", func(s *situation) { sees(s, epoch6) }, "set epoch 6: five2 five3 six"},
		{"also while HAProxy is down, for its next start", func(s *situation) { sees(s, epoch6); s.proxy = proxy{} }, "set epoch 6: five2 five3 six"},
		{"an older one is not", func(s *situation) { s.current.Tickets.Ring = epoch6; sees(s, epoch5) }, "nothing"},
		{"but once what is in use has ended", func(s *situation) {
			s.current.Tickets.Ring, s.current.Tickets.Until = epoch6, s.now
			sees(s, epoch5)
		}, "set epoch 5: five1 five2 five3"},

		// The store is away.
		{"the ring is used on", unseen, "nothing"},
		{"as long as it was good when it was last read", func(s *situation) { s.now = 3*time.Hour + 59*time.Minute }, "nothing"},
		{"then the pod has keys of its own", func(s *situation) { s.now = 4 * time.Hour }, "set epoch 0: spare1 spare2 spare3"},
		{"an agent that was restarted knows until when", func(s *situation) { unseen(s); s.now = 3 * time.Hour }, "set epoch 0: spare1 spare2 spare3"},
		{"own keys are used on", ownKeys, "nothing"},
		{"and are rotated", func(s *situation) {
			ownKeys(s)
			s.current.Tickets.Since = s.now - rotation*time.Second
		}, "set epoch 0: own2 own3 spare3"},
		{"until the ring is back", func(s *situation) { ownKeys(s); sees(s, epoch6) }, "set epoch 6: five2 five3 six"},
		{"a ring that has ended is not back", func(s *situation) {
			ownKeys(s)
			s.rings[testRing] = seenRing{Ring: epoch6, until: s.now}
		}, "nothing"},
		{"the Secret is away too", func(s *situation) { unseen(s); s.access = nil }, "nothing"},

		// Dropping.
		{"dropped keys are replaced by newer ones", func(s *situation) { floor(s, 9); sees(s, epoch9) }, "set epoch 9: nine1 nine2 nine3"},
		{"or by own ones, if those are not to be had", func(s *situation) { floor(s, 9) }, "set epoch 0: spare1 spare2 spare3"},
		{"own keys of before are dropped too", func(s *situation) { ownKeys(s); floor(s, 9) }, "set epoch 0: spare1 spare2 spare3"},
		{"those of after are not", func(s *situation) {
			ownKeys(s)
			floor(s, 9)
			s.current.Tickets.Floor, s.current.Tickets.Cleared = 9, 9
		}, "nothing"},
		{"a ring of before is no longer taken", func(s *situation) {
			ownKeys(s)
			floor(s, 9)
			s.current.Tickets.Floor, s.current.Tickets.Cleared = 9, 9
			sees(s, epoch6)
		}, "nothing"},
		{"it comes before a new revision", func(s *situation) {
			floor(s, 9)
			s.published = want(resuming(secondRevision, testRing), 2, here)
		}, "set epoch 0: spare1 spare2 spare3"},
		{"old workers are cleared when all else is done", func(s *situation) {
			s.current.Tickets.Ring = epoch9
			sees(s, epoch9)
			floor(s, 9)
		}, "clear old workers' ticket keys before epoch 9"},
		{"after a new revision", func(s *situation) {
			s.current.Tickets.Ring = epoch9
			sees(s, epoch9)
			floor(s, 9)
			s.published = want(resuming(secondRevision, testRing), 2, here)
		}, "install second with epoch 9: nine1 nine2 nine3"},
		{"and once", func(s *situation) {
			s.current.Tickets.Ring, s.current.Tickets.Cleared = epoch9, 9
			sees(s, epoch9)
			floor(s, 9)
		}, "nothing"},
		{"also while nothing is published that can be used", func(s *situation) {
			s.current.Tickets.Ring = epoch9
			sees(s, epoch9)
			floor(s, 9)
			s.published = nil
		}, "clear old workers' ticket keys before epoch 9"},
		{"a Secret that is read later says nothing less", func(s *situation) {
			ownKeys(s)
			s.current.Tickets.Floor, s.current.Tickets.Cleared = 9, 9
			s.access = nil
		}, "nothing"},

		// Installations.
		{"the first waits for its ring", func(s *situation) { first(s); delete(s.rings, testRing) }, "nothing"},
		{"for a while", func(s *situation) {
			first(s)
			s.rings[testRing] = seenRing{asked: s.now - ringWait + 1, problem: "yet to be written", kind: ticketstore.ErrNotFound}
		}, "nothing"},
		{"but not for a store that does not answer", func(s *situation) {
			first(s)
			s.rings[testRing] = seenRing{asked: s.now, problem: "away", kind: ticketstore.ErrUnreachable}
		}, "install first with epoch 0: spare1 spare2 spare3"},
		{"and goes on without it", func(s *situation) {
			first(s)
			s.rings[testRing] = seenRing{asked: s.now - ringWait, problem: "away"}
		}, "install first with epoch 0: spare1 spare2 spare3"},
		{"or with it", first, "install first with epoch 5: five1 five2 five3"},
		{"another revision of the same ring goes on with its keys", func(s *situation) {
			unseen(s)
			s.published = want(resuming(secondRevision, testRing), 2, here)
		}, "install second with epoch 5: five1 five2 five3"},
		{"so it does with own ones", func(s *situation) {
			ownKeys(s)
			s.published = want(resuming(secondRevision, testRing), 2, here)
		}, "install second with epoch 0: own1 own2 own3"},
		{"one of another ring waits for that", func(s *situation) { s.published = want(resuming(secondRevision, otherRing), 2, here) }, "nothing"},
		{"and has none of the keys of before", func(s *situation) {
			s.published = want(resuming(secondRevision, otherRing), 2, here)
			s.rings[otherRing] = seenRing{asked: s.now - ringWait}
		}, "install second with epoch 0: spare1 spare2 spare3"},
		{"but its own", func(s *situation) {
			s.published = want(resuming(secondRevision, otherRing), 2, here)
			s.rings[otherRing] = seenRing{Ring: epoch9, until: 4 * time.Hour}
		}, "install second with epoch 9: nine1 nine2 nine3"},
		{"one without resumption has none", func(s *situation) { s.published = want(secondRevision, 2, here) }, "install second without ticket keys"},
		{"more servers are installed with the keys in use", func(s *situation) {
			unseen(s)
			var many []dataplane.Endpoint
			for i := range 9 {
				many = append(many, dataplane.Endpoint{Address: fmt.Sprintf("10.0.1.%d", i), Port: 80})
			}
			s.published = want(s.published.Revision, 1, many...)
		}, "install first with epoch 5: five1 five2 five3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := resumes()
			c.change(&s)
			var got string
			switch a := decide(s.observed, s.own).(type) {
			case setTickets:
				got = "set " + keysTold(a.keys)
			case install:
				got = "install " + a.revision.Config + " without ticket keys"
				if a.state.Tickets != nil {
					got = "install " + a.revision.Config + " with " + keysTold(*a.state.Tickets)
				}
			default:
				got = told(a)
			}
			if got != c.want {
				t.Errorf("got: %s\nwant: %s", got, c.want)
			}
		})
	}
}

func TestAgentsWithOtherClocksDecideTheSame(t *testing.T) {
	for _, ahead := range []time.Duration{0, 100 * time.Hour, 10000 * time.Hour} {
		s := resumes()
		s.now += ahead
		s.rings[testRing] = seenRing{Ring: epoch6, until: s.now + time.Hour} // what the store says is a duration
		s.current.Tickets.Until += ahead
		if a, ok := decide(s.observed, s.own).(setTickets); !ok || a.keys.Ring != epoch6 || a.keys.Until != s.now+time.Hour {
			t.Errorf("%s ahead: %s", ahead, told(decide(s.observed, s.own)))
		}
	}
}

// Whatever happens, and in whatever order, an agent that has done what it
// decided on has nothing more to do, and never has keys that were dropped.
func TestTicketsSettle(t *testing.T) {
	s := resumes()
	for i, least := range []uint64{0, 3, 9, 9, 12, 1} {
		s.access.Rings[testRing] = dataplane.RingAccess{LeastEpoch: least}
		for _, seen := range []tickets.Ring{epoch5, epoch6, epoch9, {}} {
			s.now += time.Hour
			s.rings[testRing] = seenRing{Ring: seen, until: s.now + time.Hour/2}
			for range 3 {
				switch a := decide(s.observed, s.own).(type) {
				case setTickets:
					s.current.Tickets = &a.keys
					s.spare = tickets.New(0)
				case clearOld:
					s.current.Tickets.Cleared = a.least
				}
			}
			if got := told(decide(s.observed, s.own)); got != "nothing" {
				t.Fatalf("step %d, ring %d: still to do: %s", i, seen.Epoch, got)
			}
			if has := s.current.Tickets; has.Epoch > 0 && has.Epoch < least || has.Epoch == 0 && has.Floor < least {
				t.Fatalf("step %d, ring %d: keys of epoch %d, floor %d, where %d is the least", i, seen.Epoch, has.Epoch, has.Floor, least)
			}
		}
	}
}

func TestTheAgeOfTheKeyThatEncrypts(t *testing.T) {
	s := resumes()
	s.rings[testRing] = seenRing{Ring: epoch6, until: 4 * time.Hour}
	if a := decide(s.observed, s.own).(setTickets); a.keys.Since != s.now {
		t.Errorf("after a rotation: since %s, want now, %s", a.keys.Since, s.now)
	}
	s = resumes()
	other := resuming(firstRevision, testRing)
	other.Config = "other"
	s.published = want(other, 2, here)
	if a := decide(s.observed, s.own).(install); a.state.Tickets.Since != 30*time.Minute {
		t.Errorf("after a new revision: since %s, want as before", a.state.Tickets.Since)
	}
}

func TestTicketStatus(t *testing.T) {
	own := func(s *situation) { s.current.Tickets.Ring = mine }
	for _, c := range []struct {
		name    string
		change  func(*situation)
		epoch   uint64
		problem []string // parts of it, in order
	}{
		{"all is well", func(*situation) {}, 5, nil},
		{"the store is away", func(s *situation) {
			seen := s.rings[testRing]
			seen.problem = "the store is away"
			s.rings[testRing] = seen
		}, 5, []string{"the store is away", "the keys of epoch 5 stay in use"}},
		{"the store was never there", func(s *situation) { own(s); s.rings[testRing] = seenRing{problem: "the store is away"} },
			0, []string{"the store is away", "this pod's own keys", "no other pod opens them"}},
		{"nothing was read yet", func(s *situation) { own(s); s.rings[testRing] = seenRing{} }, 0, []string{"ring " + testRing, "has not been read"}},
		{"the Secret was not read yet", func(s *situation) { s.access = nil }, 5, []string{`Secret "web-tickets"`, "not been read yet"}},
		{"the Secret cannot be read", func(s *situation) { s.accessProblem = `Secret "web-tickets" cannot be read` }, 5, []string{`Secret "web-tickets" cannot be read`}},
		{"there is no store", func(s *situation) { s.access.Store = nil }, 5, []string{`Secret "web-tickets" names no store`}},
		{"the Secret does not know the ring", func(s *situation) { delete(s.access.Rings, testRing) }, 5, []string{`Secret "web-tickets" has no key for ring ` + testRing}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := resumes()
			c.change(&s)
			got := ticketStatusOf(s.observed, s.current, "web-tickets")
			if got == nil || got.Ring != testRing || got.Epoch != c.epoch {
				t.Fatalf("status: %+v", got)
			}
			if len(c.problem) == 0 && got.Problem != "" {
				t.Errorf("problem: %s", got.Problem)
			}
			rest := got.Problem
			for _, part := range c.problem {
				_, after, ok := strings.Cut(rest, part)
				if !ok {
					t.Errorf("no %q in: %s", part, got.Problem)
				}
				rest = after
			}
		})
	}
	s := resumes()
	if got := ticketStatusOf(s.observed, nil, "web-tickets"); got != nil {
		t.Errorf("while HAProxy does not run: %+v", got)
	}
	s = settled()
	if got := ticketStatusOf(s.observed, s.current, "web-tickets"); got != nil {
		t.Errorf("where nothing is resumed: %+v", got)
	}
}

func TestATreeKeepsItsTicketKeys(t *testing.T) {
	trees := trees{dir: t.TempDir()}
	revision := resuming(firstRevision, testRing)
	s := testState(revision)
	s.Tickets = &ticketKeys{ID: testRing, Ring: epoch5, Floor: 2, Cleared: 2, Until: time.Hour, Since: time.Minute}
	written, err := trees.write(revision, s)
	if err != nil {
		t.Fatal(err)
	}
	files := func(r tickets.Ring) {
		t.Helper()
		for _, f := range revision.Tickets.Files {
			path := trees.path(written.Name, haproxy.TicketFile(f.Name))
			content, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(content, r.For(f.Scope).File()) {
				t.Errorf("%s: %v; or it does not hold the keys of its scope", f.Name, err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", f.Name, info.Mode(), err)
			}
		}
	}
	files(epoch5)
	read, err := trees.read(written.Name)
	if err != nil || !reflect.DeepEqual(read, written) {
		t.Errorf("read back: %+v, %v", read, err)
	}
	read.Tickets.Ring = epoch6
	if err := trees.writeTickets(read); err != nil {
		t.Fatal(err)
	}
	files(epoch6)
}

func TestRevisionsWithUnsafeTicketFiles(t *testing.T) {
	for name, change := range map[string]func(*dataplane.Revision){
		"a name above the folder":     func(r *dataplane.Revision) { r.Tickets.Files[0].Name = "../x" },
		"a name below it":             func(r *dataplane.Revision) { r.Tickets.Files[0].Name = "a/b" },
		"no name":                     func(r *dataplane.Revision) { r.Tickets.Files[0].Name = "" },
		"a file among the tickets":    func(r *dataplane.Revision) { r.Files = map[string]string{"tickets/web.keys": "x"} },
		"a ring that is no ID":        func(r *dataplane.Revision) { r.Tickets.Ring = "a b" },
		"keys that are never rotated": func(r *dataplane.Revision) { r.Tickets.RotationSeconds = 0 },
	} {
		r := resuming(firstRevision, testRing)
		r.Tickets.Files = slices.Clone(r.Tickets.Files)
		if err := checkFiles(r); err != nil {
			t.Fatal(err)
		}
		change(&r)
		if err := checkFiles(r); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestWhatIsToldOfTicketsHasNoKey(t *testing.T) {
	s := resumes()
	b, err := json.Marshal(ticketStatusOf(s.observed, s.current, "web-tickets"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(b), setTickets{*s.current.Tickets}.describe(), clearOld{5}.describe(), fmt.Sprintf("%+v", *s.current.Tickets)} {
		for _, k := range epoch5.Keys {
			numbers := fmt.Sprintf("%d %d %d %d", k[0], k[1], k[2], k[3])
			if strings.Contains(text, k.Base64()[:8]) || strings.Contains(text, numbers) {
				t.Errorf("a key is told: %.200s", text)
			}
		}
	}
}
