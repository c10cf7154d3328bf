package agent

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
)

func publish(r dataplane.Revision) publication {
	return publication{assignment: dataplane.Assignment{Stable: dataplane.Target{Revision: r.Name(), Generation: 1}},
		revisions: []dataplane.Revision{r}, endpoints: dataplane.Endpoints{"shop:http": {here}}}
}

func TestPublished(t *testing.T) {
	p := publish(firstRevision)
	candidate := dataplane.Target{Revision: secondRevision.Name(), Generation: 2}
	p.assignment.Candidate, p.assignment.CandidatePod = &candidate, "web-2"
	p.revisions = append(p.revisions, secondRevision)
	for pod, want := range map[string]dataplane.Target{"web-1": p.assignment.Stable, "web-2": candidate} {
		got, err := parsePublished(p.data(t), pod)
		if err != nil {
			t.Fatal(err)
		}
		if got.Target != want || got.Revision.Name() != want.Revision || got.Endpoints["shop:http"][0] != here {
			t.Errorf("%s gets %+v", pod, got)
		}
	}
}

func TestUnusablePublications(t *testing.T) {
	file := func(name string) dataplane.Revision {
		return dataplane.Revision{Files: map[string]string{name: "x"}}
	}
	for _, c := range []struct {
		name     string
		revision dataplane.Revision
		change   func(data map[string]string)
		want     string
	}{
		{"no assignment", firstRevision, func(d map[string]string) { delete(d, dataplane.KeyAssignment) }, "has no key"},
		{"no revision", firstRevision, func(d map[string]string) { delete(d, dataplane.RevisionKey(firstRevision.Name())) }, "has no key"},
		{"no endpoints", firstRevision, func(d map[string]string) { delete(d, dataplane.KeyEndpoints) }, "has no key"},
		{"no JSON", firstRevision, func(d map[string]string) { d[dataplane.KeyEndpoints] = "{" }, dataplane.KeyEndpoints},
		{"a revision that was changed", firstRevision, func(d map[string]string) {
			d[dataplane.RevisionKey(firstRevision.Name())] = encode(t, secondRevision)
		}, "was changed after it was published"},
		{"a file above the folder", file("../x"), nil, "which it cannot have"},
		{"an absolute file", file("/etc/x"), nil, "which it cannot have"},
		{"a file under another name", file("a/../b"), nil, "which it cannot have"},
		{"a file of the agent's own", file("state.json"), nil, "which it cannot have"},
		{"a file among the certificates", file("certs/x.pem"), nil, "which it cannot have"},
		{"a certificate above the folder", dataplane.Revision{Certificates: []dataplane.Certificate{{Name: "../x", Secret: "x"}}}, nil, "names of Kubernetes objects"},
		{"an endpoint that is no address", firstRevision, func(d map[string]string) {
			d[dataplane.KeyEndpoints] = encode(t, dataplane.Endpoints{"shop:http": {{Address: "10.0.0.1 port 1; shutdown", Port: 80}}})
		}, "not an IP address"},
		{"an endpoint without a port", firstRevision, func(d map[string]string) {
			d[dataplane.KeyEndpoints] = encode(t, dataplane.Endpoints{"shop:http": {{Address: "10.0.0.1"}}})
		}, "not an IP address and a port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := publish(c.revision).data(t)
			if c.change != nil {
				c.change(data)
			}
			p, err := parsePublished(data, "web-1")
			var u *unusable
			if !errors.As(err, &u) || p != nil || !strings.Contains(u.Message, c.want) {
				t.Fatalf("got %+v, %v; want an error with %q", p, err, c.want)
			}
			if c.name != "no assignment" && u.Target.Revision != c.revision.Name() {
				t.Errorf("the error is about %+v", u.Target)
			}
		})
	}
}

// FuzzPublished holds the parser to an error, or to something that can be
// written to disk and told to HAProxy.
func FuzzPublished(f *testing.F) {
	p := publish(firstRevision)
	f.Add(encode(f, p.assignment), encode(f, firstRevision), encode(f, p.endpoints))
	f.Add(`{"stable":{"revision":"x"}}`, `{"files":{"../x":""}}`, `{"a":[{"address":"::1%lo","port":1}]}`)
	f.Add("null", "null", "null")
	f.Fuzz(func(t *testing.T, assignment, revision, endpoints string) {
		// Under its true name, so that the hash is no obstacle.
		var r dataplane.Revision
		_ = json.Unmarshal([]byte(revision), &r)
		var a dataplane.Assignment
		if json.Unmarshal([]byte(assignment), &a) == nil {
			a.Stable.Revision = r.Name()
			assignment = encode(t, a)
		}
		p, err := parsePublished(map[string]string{dataplane.KeyAssignment: assignment, dataplane.RevisionKey(r.Name()): revision,
			dataplane.KeyEndpoints: endpoints}, "web-1")
		if err != nil {
			var u *unusable
			if !errors.As(err, &u) || u.Message == "" {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		for name := range p.Revision.Files {
			if strings.HasPrefix(name, "/") || strings.Contains("/"+name+"/", "/../") || strings.HasPrefix(name, "certs/") {
				t.Errorf("a file %q", name)
			}
		}
		for _, e := range p.Endpoints["a"] {
			if strings.ContainsAny(haproxy.Address(e), " ;\n") {
				t.Errorf("an endpoint %+v", e)
			}
		}
	})
}
