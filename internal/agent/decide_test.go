package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

// situation is what decide is asked about: a pod that runs one revision with
// one certificate and one endpoint, all as published. A case changes it.
type situation struct {
	observed
	own
}

var (
	firstRevision  = dataplane.Revision{Config: "first", Certificates: []dataplane.Certificate{pqCertificate}, Backends: oneBackend}
	secondRevision = dataplane.Revision{Config: "second", Certificates: []dataplane.Certificate{pqCertificate, ecCertificate}, Backends: oneBackend}

	pqCertificate = dataplane.Certificate{Name: "pq", Secret: "pq", Algorithm: "ML-DSA-65"}
	ecCertificate = dataplane.Certificate{Name: "ec", Secret: "ec", Algorithm: "ECDSA-P256"}
	oneBackend    = []dataplane.Backend{{Name: "backend.web", Groups: []dataplane.ServerGroup{{Name: "shop:http", Weight: 1}}}}

	here  = dataplane.Endpoint{Address: "10.0.0.1", Port: 80}
	there = dataplane.Endpoint{Address: "10.0.0.2", Port: 80}
)

func cert(secret, algorithm, digest string) *certificate {
	return &certificate{Secret: secret, ResourceVersion: "v-" + digest, Algorithm: algorithm, Digest: digest, SerialNumber: digest}
}

func want(r dataplane.Revision, generation int64, endpoints ...dataplane.Endpoint) *published {
	return &published{Target: dataplane.Target{Revision: r.Name(), Generation: generation}, Revision: r,
		Endpoints: dataplane.Endpoints{"shop:http": endpoints}}
}

func settled() situation {
	p := want(firstRevision, 1, here)
	one := cert("pq", "ML-DSA-65", "1")
	w := worker{pid: 7, started: 100}
	return situation{
		observed{published: p, secrets: map[string]secret{"pq": {Certificate: one}, "ec": {Certificate: cert("ec", "ECDSA-P256", "1")}},
			proxy: proxy{up: true, tree: "first-1", worker: w}},
		own{current: &tree{Name: "first-1", Revision: firstRevision, state: state{Target: p.Target,
			Slots: haproxy.Assign(firstRevision, nil, p.Endpoints), Certificates: map[string]*certificate{"pq": one}}},
			synchronised: w, refusedCertificates: map[string]refusedCertificate{}},
	}
}

// told is an action in words.
func told(a action) string {
	switch a := a.(type) {
	case nil:
		return "nothing"
	case install:
		var certs []string
		for _, name := range slices.Sorted(maps.Keys(a.state.Certificates)) {
			certs = append(certs, name+":"+a.state.Certificates[name].Digest)
		}
		return fmt.Sprintf("install %s, generation %d, with %s", a.revision.Config, a.state.Target.Generation, strings.Join(certs, " "))
	case setCertificate:
		return fmt.Sprintf("set certificate %s:%s", a.name, a.certificate.Digest)
	case setServers:
		var changes []string
		for _, c := range a.changes {
			to := "nowhere"
			if c.Endpoint != nil {
				to = c.Endpoint.Address
			}
			changes = append(changes, c.Server+" to "+to)
		}
		return "move " + strings.Join(changes, ", ")
	case note:
		return fmt.Sprintf("note generation %d, Secret %s", a.state.Target.Generation, a.state.Certificates["pq"].ResourceVersion)
	}
	return a.describe()
}

func TestDecide(t *testing.T) {
	gone := secret{Problem: `Secret "pq" does not exist`}
	renew := func(s *situation) { s.secrets["pq"] = secret{Certificate: cert("pq", "ML-DSA-65", "2")} }
	first := func(s *situation) { s.current, s.proxy = nil, proxy{} }
	refuse := func(s *situation) {
		a, ok := decide(s.observed, s.own).(install)
		if !ok {
			t.Fatal("nothing to refuse")
		}
		s.refusals = s.refusals.with(refusal{key: a.key()})
	}
	// outgrow has a group whose 8 servers all have endpoints get a ninth, and one in
	// place of that which goes.
	outgrow := func(s *situation) {
		var many []dataplane.Endpoint
		for i := range 10 {
			many = append(many, dataplane.Endpoint{Address: fmt.Sprintf("10.0.1.%d", i), Port: 80})
		}
		s.current.Slots = haproxy.Assign(firstRevision, haproxy.Slots{"shop:http": make([]haproxy.Slot, 8)}, dataplane.Endpoints{"shop:http": many[:8]})
		s.published = want(firstRevision, 1, many[1:]...)
	}
	for _, c := range []struct {
		name   string
		change func(*situation)
		want   string
	}{
		{"all is as published", func(*situation) {}, "nothing"},

		// The first configuration.
		{"nothing is published yet", func(s *situation) { first(s); s.published = nil }, "nothing"},
		{"the first is installed before HAProxy runs", first, "install first, generation 1, with pq:1"},
		{"the first waits for its Secret", func(s *situation) { first(s); s.secrets["pq"] = gone }, "nothing"},
		{"the first waits for a Secret not yet read", func(s *situation) { first(s); delete(s.secrets, "pq") }, "nothing"},
		{"the first waits for the right algorithm", func(s *situation) {
			first(s)
			s.secrets["pq"] = secret{Certificate: cert("pq", "ECDSA-P256", "2")}
		}, "nothing"},

		// Another revision.
		{"a new revision is installed", func(s *situation) { s.published = want(secondRevision, 2, here) }, "install second, generation 2, with ec:1 pq:1"},
		{"with the certificates of now", func(s *situation) { s.published = want(secondRevision, 2, here); renew(s) }, "install second, generation 2, with ec:1 pq:2"},
		{"with the former certificate where the Secret is gone", func(s *situation) {
			s.published = want(secondRevision, 2, here)
			s.secrets["pq"] = gone
		}, "install second, generation 2, with ec:1 pq:1"},
		{"it waits for a Secret that never was", func(s *situation) {
			s.published = want(secondRevision, 2, here)
			s.secrets["ec"] = secret{Problem: "no"}
		}, "nothing"},
		{"while it waits, the running one is kept up to date", func(s *situation) {
			s.published = want(secondRevision, 2, there)
			s.secrets["ec"] = secret{Problem: "no"}
		}, "move g1-1 to nowhere, g1-2 to 10.0.0.2"},
		{"a refused one is not tried again", func(s *situation) { s.published = want(secondRevision, 2, here); refuse(s) }, "nothing"},
		{"nor when endpoints change", func(s *situation) {
			s.published = want(secondRevision, 2, here)
			refuse(s)
			s.published = want(secondRevision, 2, there)
		}, "move g1-1 to nowhere, g1-2 to 10.0.0.2"},
		{"nor under a new generation", func(s *situation) {
			s.published = want(secondRevision, 2, here)
			refuse(s)
			s.published = want(secondRevision, 3, here)
		}, "nothing"},
		{"but with another certificate", func(s *situation) { s.published = want(secondRevision, 2, here); refuse(s); renew(s) }, "install second, generation 2, with ec:1 pq:2"},
		{"unless it was the loading that was refused", func(s *situation) {
			s.published = want(secondRevision, 2, here)
			s.refusals = refusals{{key: decide(s.observed, s.own).(install).shape()}}
			renew(s)
		}, "set certificate pq:2"},
		{"also after others were", func(s *situation) {
			s.published = want(secondRevision, 2, here)
			refuse(s)
			before := s.secrets["pq"]
			renew(s)
			refuse(s)
			s.secrets["pq"] = before
		}, "nothing"},
		{"and another revision is", func(s *situation) {
			s.published = want(secondRevision, 2, here)
			refuse(s)
			third := secondRevision
			third.Config = "third"
			s.published = want(third, 3, here)
		}, "install third, generation 3, with ec:1 pq:1"},
		{"the running one published again is no news", func(s *situation) {
			s.published = want(secondRevision, 2, here)
			refuse(s)
			s.published = want(firstRevision, 1, here)
		}, "nothing"},
		{"a generation without a change is noted", func(s *situation) { s.published = want(firstRevision, 2, here) }, "note generation 2, Secret v-1"},

		// HAProxy itself.
		{"a current tree that HAProxy does not run is loaded", func(s *situation) { s.proxy.tree = "zeroth-1" }, "load"},
		{"not while HAProxy is down", func(s *situation) { s.proxy = proxy{} }, "nothing"},
		{"a worker that is new to the agent is synchronised", func(s *situation) { s.proxy.worker.started++ }, "synchronise"},
		{"before anything else", func(s *situation) { s.proxy.worker.started++; s.published = want(secondRevision, 2, here) }, "synchronise"},

		// Certificates.
		{"a new certificate is set", renew, "set certificate pq:2"},
		// What needs another worker waits for ever in a pod that leaves.
		{"a pod that drains loads nothing", func(s *situation) { s.proxy.tree = "zeroth-1"; s.leaving = true }, "nothing"},
		{"nor does it install", func(s *situation) { s.published = want(secondRevision, 2, here); s.leaving = true }, "nothing"},
		{"but follows its endpoints", func(s *situation) { s.published = want(secondRevision, 2, there); s.leaving = true }, "move g1-1 to nowhere, g1-2 to 10.0.0.2"},
		{"and certificates", func(s *situation) { renew(s); s.leaving = true }, "set certificate pq:2"},
		{"also while HAProxy is down, for its next start", func(s *situation) { renew(s); s.proxy = proxy{} }, "set certificate pq:2"},
		{"one that is too long for the runtime API needs a reload", func(s *situation) {
			renew(s)
			s.secrets["pq"].Certificate.PEM = make([]byte, runtime.MaxCertificate+1)
		}, "install first, generation 1, with pq:2"},
		{"a Secret that is gone changes nothing", func(s *situation) { s.secrets["pq"] = gone }, "nothing"},
		{"nor one of another algorithm", func(s *situation) { s.secrets["pq"] = secret{Certificate: cert("pq", "ECDSA-P256", "2")} }, "nothing"},
		{"a refused certificate is not tried again", func(s *situation) {
			renew(s)
			s.refusedCertificates["pq"] = refusedCertificate{digest: "2"}
		}, "nothing"},
		{"the one after it is", func(s *situation) {
			renew(s)
			s.refusedCertificates["pq"] = refusedCertificate{digest: "1.5"}
		}, "set certificate pq:2"},
		{"the same content written again is noted", func(s *situation) {
			same := cert("pq", "ML-DSA-65", "1")
			same.ResourceVersion = "later"
			s.secrets["pq"] = secret{Certificate: same}
		}, "note generation 1, Secret later"},
		{"what the operator published last may be unusable", func(s *situation) { s.published = nil; renew(s) }, "set certificate pq:2"},

		// Endpoints.
		{"an endpoint moves", func(s *situation) { s.published = want(firstRevision, 1, there) }, "move g1-1 to nowhere, g1-2 to 10.0.0.2"},
		{"an endpoint comes", func(s *situation) { s.published = want(firstRevision, 1, here, there) }, "move g1-2 to 10.0.0.2"},
		{"the last endpoint goes", func(s *situation) { s.published = want(firstRevision, 1) }, "move g1-1 to nowhere"},
		{"more than there are slots need a reload", func(s *situation) {
			var many []dataplane.Endpoint
			for i := range 9 {
				many = append(many, dataplane.Endpoint{Address: fmt.Sprintf("10.0.1.%d", i), Port: 80})
			}
			s.published = want(firstRevision, 1, many...)
		}, "install first, generation 1, with pq:1"},
		{"also where one of them goes", outgrow, "install first, generation 1, with pq:1"},
		{"a pod that drains takes in what fits", func(s *situation) { outgrow(s); s.leaving = true }, "move g1-1 to 10.0.1.8"},
		{"so does one whose HAProxy refused so many", func(s *situation) { outgrow(s); refuse(s) }, "move g1-1 to 10.0.1.8"},
		{"what does not fit waits", func(s *situation) {
			outgrow(s)
			s.leaving = true
			s.current.Slots = decide(s.observed, s.own).(setServers).slots
		}, "nothing"},
		{"and keeps nothing else waiting", func(s *situation) {
			outgrow(s)
			s.leaving = true
			s.current.Slots = decide(s.observed, s.own).(setServers).slots
			s.published.Target.Generation = 2
		}, "note generation 2, Secret v-1"},
		{"a group that is not named keeps its endpoints, also where the running revision is the one to run", func(s *situation) {
			s.published.Endpoints = dataplane.Endpoints{"shop-v2:http": {there}}
		}, "nothing"},
		{"and where another is to be run, and was refused", func(s *situation) {
			s.published = want(secondRevision, 2)
			refuse(s)
			s.published.Endpoints = dataplane.Endpoints{}
		}, "nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := settled()
			c.change(&s)
			if got := told(decide(s.observed, s.own)); got != c.want {
				t.Errorf("got: %s\nwant: %s", got, c.want)
			}
		})
	}
}

// A revision that is installed has the endpoints that are published, and of a
// group that nothing is published of those that it has.
func TestEndpointsOfANewRevision(t *testing.T) {
	next := secondRevision
	next.Backends = []dataplane.Backend{{Name: "backend.web", Groups: []dataplane.ServerGroup{
		{Name: "shop:http", Weight: 1}, {Name: "shop-v2:http", Weight: 1}, {Name: "other:http", Weight: 1}}}}
	s := settled()
	s.published = want(next, 2)
	s.published.Endpoints = dataplane.Endpoints{"shop-v2:http": {there}, "other:http": nil}
	a, ok := decide(s.observed, s.own).(install)
	if !ok {
		t.Fatalf("got: %s", told(decide(s.observed, s.own)))
	}
	for group, want := range map[string]*dataplane.Endpoint{"shop:http": &here, "shop-v2:http": &there, "other:http": nil} {
		slots := a.state.Slots[group]
		if len(slots) == 0 || (slots[0].Endpoint == nil) != (want == nil) || want != nil && *slots[0].Endpoint != *want {
			t.Errorf("group %s has the servers %v, want %v first", group, slots, want)
		}
	}
}

func TestDecideChangesNothingByItself(t *testing.T) {
	s := settled()
	s.secrets["pq"] = secret{Certificate: cert("pq", "ML-DSA-65", "2")}
	decide(s.observed, s.own)
	s.published = want(firstRevision, 2, there)
	a := decide(s.observed, s.own)
	if s.current.Certificates["pq"].Digest != "1" || *s.current.Slots["shop:http"][0].Endpoint != here || s.current.Target.Generation != 1 {
		t.Errorf("the state was changed by deciding on: %s", told(a))
	}
}

func TestNewServersComeBeforeOldOnesGo(t *testing.T) {
	s := settled()
	s.published = want(firstRevision, 1, there)
	changes := additionsFirst(decide(s.observed, s.own).(setServers).changes)
	if len(changes) != 2 || changes[0].Endpoint == nil || *changes[0].Endpoint != there || changes[1].Endpoint != nil {
		t.Errorf("changes: %+v", changes)
	}
}

func TestSecretsNeeded(t *testing.T) {
	s := settled()
	s.published = want(secondRevision, 2, here)
	if got := secretsNeeded(s.observed, s.own); !slices.Equal(got, []string{"ec", "pq"}) {
		t.Errorf("needed: %v", got)
	}
}

func TestStatus(t *testing.T) {
	target := want(firstRevision, 1).Target
	certificate := func(s dataplane.Status, name string) dataplane.CertificateStatus {
		for _, c := range s.Certificates {
			if c.Name == name {
				return c
			}
		}
		return dataplane.CertificateStatus{}
	}
	for _, c := range []struct {
		name   string
		change func(*situation)
		check  func(dataplane.Status) bool
	}{
		{"what runs", func(*situation) {}, func(s dataplane.Status) bool {
			return s.Running == target && certificate(s, "pq") == dataplane.CertificateStatus{Name: "pq", Secret: "pq", ResourceVersion: "v-1", SerialNumber: "1"}
		}},
		{"nothing runs", func(s *situation) { s.proxy = proxy{} }, func(s dataplane.Status) bool {
			return s.Running == dataplane.Target{} && len(s.Certificates) == 0
		}},
		{"a Secret that turned bad", func(s *situation) { s.secrets["pq"] = secret{Problem: "bad"} }, func(s dataplane.Status) bool {
			c := certificate(s, "pq")
			return c.Error == "bad" && c.SerialNumber == "1"
		}},
		{"a Secret that HAProxy refuses", func(s *situation) {
			s.secrets["pq"] = secret{Certificate: cert("pq", "ML-DSA-65", "2")}
			s.refusedCertificates["pq"] = refusedCertificate{"2", "too odd"}
		}, func(s dataplane.Status) bool {
			c := certificate(s, "pq")
			return strings.Contains(c.Error, "too odd") && c.SerialNumber == "1"
		}},
		{"a Secret that a new process has not read yet is no problem", func(s *situation) { delete(s.secrets, "pq") }, func(s dataplane.Status) bool {
			return certificate(s, "pq").Error == ""
		}},
		{"what a new revision waits for", func(s *situation) {
			s.published = want(secondRevision, 2)
			s.secrets["ec"] = secret{Problem: "not there"}
		}, func(s dataplane.Status) bool { return s.Running == target && certificate(s, "ec").Error == "not there" }},
		{"what it waits for of a certificate that is served", func(s *situation) {
			vaulted := firstRevision
			vaulted.Config, vaulted.Certificates = "vaulted", slices.Clone(firstRevision.Certificates)
			vaulted.Certificates[0].HSMPool = "vault"
			s.published = want(vaulted, 2)
		}, func(s dataplane.Status) bool {
			c := certificate(s, "pq")
			return strings.Contains(c.Error, `lies in the Secret where the configuration expects it in HSMPool "vault"`) && c.SerialNumber == "1"
		}},
		{"a Secret of it that has not been read yet is no problem", func(s *situation) {
			s.published = want(secondRevision, 2)
			delete(s.secrets, "ec")
		}, func(s dataplane.Status) bool {
			return s.Running == target && certificate(s, "ec") == dataplane.CertificateStatus{}
		}},
		{"a refusal", func(s *situation) {
			s.published = want(secondRevision, 3)
			s.refusals = refusals{{rejection: dataplane.Rejection{Target: want(secondRevision, 2).Target, Message: "no"}}}
		}, func(s dataplane.Status) bool {
			return s.Rejected != nil && s.Rejected.Message == "no" && s.Rejected.Target == want(secondRevision, 3).Target
		}},
		{"a refusal of what is no longer wanted", func(s *situation) {
			s.refusals = refusals{{rejection: dataplane.Rejection{Target: want(secondRevision, 2).Target, Message: "no"}}}
		}, func(s dataplane.Status) bool { return s.Rejected == nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := settled()
			c.change(&s)
			running := s.current
			if !s.proxy.up {
				running = nil
			}
			if got := statusOf(s.observed, s.own, running, nil); !c.check(got) {
				t.Errorf("status: %+v", got)
			}
		})
	}
	if got := statusOf(observed{}, own{}, nil, &unusable{Target: target, Message: "changed"}); got.Rejected == nil || got.Rejected.Target != target || got.Rejected.Message != "changed" {
		t.Errorf("an unusable publication: %+v", got)
	}
}

func TestRefusals(t *testing.T) {
	rejected := func(revision, message string) dataplane.Rejection {
		return dataplane.Rejection{Target: dataplane.Target{Revision: revision}, Message: message}
	}
	var all refusals
	all = all.with(refusal{key: "a", rejection: rejected("one", "first")})
	all = all.with(refusal{key: "b", rejection: rejected("two", "second")})
	all = all.with(refusal{key: "a", rejection: rejected("one", "third")})
	if len(all) != 2 || all.last("one").Message != "third" || all.last("two").Message != "second" || all.last("three") != nil {
		t.Errorf("%+v", all)
	}
	all[0].key = "" // its time is over: it is told until there is another
	if all.last("two") == nil {
		t.Error("what is tried again is not told any more")
	}
	for i := range 2 * mostRefusals {
		all = all.with(refusal{key: fmt.Sprint(i), rejection: rejected("many", fmt.Sprint(i))})
	}
	if len(all) != mostRefusals || all[0].key != fmt.Sprint(mostRefusals) || all.last("many").Message != fmt.Sprint(2*mostRefusals-1) {
		t.Errorf("%d are remembered, the first of key %s: %+v", len(all), all[0].key, all.last("many"))
	}
}
