package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/hsmpool"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/model"
	"qtls.dev/qtls/internal/resolve"
	"qtls.dev/qtls/internal/rollout"
)

// plan is what is to be published, and why it may not be all that is wanted.
type plan struct {
	// Wanted is the target that the spec stands for; zero when there is none.
	Wanted dataplane.Target
	// Assignment and Revisions to publish; without a stable revision there is
	// nothing to publish yet.
	Assignment dataplane.Assignment
	Revisions  map[string]dataplane.Revision
	// Held says that what is published stays, because of a problem.
	Held bool
	// Waiting says that a certificate is being issued and worth a moment.
	Waiting bool
	// Rejection by a pod of what is wanted, if any.
	Rejection *dataplane.Rejection
}

// Published says whether there is anything to run.
func (p plan) Published() bool { return p.Assignment.Stable.Revision != "" }

// Secrets that pods need for any of the revisions.
func (p plan) Secrets() []string {
	var names []string
	for _, r := range p.Revisions {
		for _, c := range r.Certificates {
			names = append(names, c.Secret)
		}
		if r.HSM != nil {
			for _, m := range r.HSM.Members {
				if !m.InPod {
					names = append(names, m.Secret)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ports that pods listen on: those of the revisions that are published, one of
// which each runs, until all are to run the one that the spec stands for.
func (p plan) ports() []int32 {
	var ports []int32
	for _, r := range p.Revisions {
		ports = append(ports, haproxy.Ports(r)...)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// rings that the revisions' session tickets are of, by ID.
func (p plan) rings() []string {
	var ids []string
	for _, r := range p.Revisions {
		if r.Tickets != nil {
			ids = append(ids, r.Tickets.Ring)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// keepsLibraries says whether the pods keep the vendors' libraries that they
// have, though the HSMPool has these: while the configuration that signs with
// them is held, or names a member that the pool has no library for any more. That
// lasts until a pod has taken up the configuration without it. With no pod ready
// there is nothing to protect: what the pool has may be the remedy. It is pure.
func (p plan) keepsLibraries(libraries []hsmpool.Library, pods []rollout.Pod) bool {
	named, lacking := false, false
	for _, r := range p.Revisions {
		if r.HSM == nil {
			continue
		}
		for _, m := range r.HSM.Members {
			if m.InPod {
				named = true
				lacking = lacking || !slices.ContainsFunc(libraries, func(l hsmpool.Library) bool { return l.Member == m.Name })
			}
		}
	}
	ready := func(pod rollout.Pod) bool { return pod.Ready && !pod.Terminating }
	return named && p.Held || lacking && slices.ContainsFunc(pods, ready)
}

// decide is pure.
func decide(in inputs, now time.Time) (plan, error) {
	holds := func(p resolve.Problem) bool { return p.Holds }
	fatal := func(p resolve.Problem) bool { return p.Fatal }
	nothing := slices.ContainsFunc(in.Problems, fatal) || len(in.Model.Ports) == 0
	if in.Published != nil && slices.ContainsFunc(in.Problems, holds) {
		p := plan{Assignment: rollout.Hold(in.Published.Assignment, in.Observed), Revisions: map[string]dataplane.Revision{}, Held: true}
		for _, name := range p.names() {
			p.Revisions[name] = in.Published.Revisions[name]
		}
		if nothing || !lost(in, p.Assignment.Stable.Revision) {
			return p, nil
		}
	}
	switch {
	case nothing:
		return plan{Waiting: issuing(in.Problems)}, nil
	case in.Published == nil && issuing(in.Problems) && now.Before(in.Gateway.CreationTimestamp.Add(issuingGrace)):
		return plan{Waiting: true}, nil
	}
	revision, err := haproxy.Render(in.Model)
	if err != nil {
		return plan{}, fmt.Errorf("configuration of QTLSGateway %s: %w", key(in.Gateway), err)
	}
	wanted := dataplane.Target{Revision: revision.Name(), Generation: in.Gateway.Generation}
	var before *dataplane.Assignment
	known := map[string]dataplane.Revision{}
	if in.Published != nil {
		before, known = &in.Published.Assignment, in.Published.Revisions
	}
	p := plan{Wanted: wanted, Assignment: rollout.Plan(before, wanted, in.Observed), Revisions: map[string]dataplane.Revision{}}
	p.Rejection = rollout.Rejection(wanted, in.Observed)
	for _, name := range p.names() {
		if name == wanted.Revision {
			p.Revisions[name] = revision
		} else {
			p.Revisions[name] = known[name]
		}
	}
	return p, nil
}

// mostRevision is how long a revision may be, in JSON. Two are published at a time,
// in one ConfigMap, which has room for 1 MiB; the rest is for the endpoints of some
// thousand pods.
const mostRevision = 448 << 10

// oversize is the problem of a model whose revision cannot be published beside
// another. It is pure.
func oversize(m model.Gateway) []resolve.Problem {
	revision, err := haproxy.Render(m)
	if err != nil {
		return nil // decide tells it
	}
	b, err := json.Marshal(revision)
	if err != nil || len(b) <= mostRevision {
		return nil
	}
	return []resolve.Problem{{Condition: v1alpha1.ConditionAccepted, Reason: v1alpha1.ReasonInvalid, Holds: true, Fatal: true,
		Message: fmt.Sprintf("the configuration has %d KiB, of which %d KiB are certificates of authorities, and the most is %d KiB; let the caRefs name the authorities that are needed alone, or divide the listeners among several gateways",
			len(b)>>10, authorities(revision)>>10, mostRevision>>10)}}
}

// authorities are the bytes of a revision's files of CA certificates.
func authorities(r dataplane.Revision) int {
	n := 0
	for name, content := range r.Files {
		if strings.HasPrefix(name, haproxy.AuthoritiesFolder) {
			n += len(content)
		}
	}
	return n
}

// lost says that a published revision cannot be served any more: no pod does, and
// none that starts can, for want of a certificate.
func lost(in inputs, revision string) bool {
	return !rollout.MayServe(revision, in.Observed) && slices.ContainsFunc(in.Published.Revisions[revision].Certificates, func(c dataplane.Certificate) bool {
		_, ok := stored(in, c)
		return !ok
	})
}

// stored is what the Secret of a revision's certificate has, if a pod that starts
// can serve it.
func stored(in inputs, c dataplane.Certificate) (*keypair.KeyPair, bool) {
	s := in.Objects.Secrets[c.Secret]
	if s == nil {
		return nil, false
	}
	pair, err := keypair.ParseStored(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	return pair, err == nil && string(pair.Algorithm) == c.Algorithm && keypair.PoolOf(pair.Key) == c.HSMPool
}

func (p plan) names() []string {
	names := []string{p.Assignment.Stable.Revision}
	if c := p.Assignment.Candidate; c != nil {
		names = append(names, c.Revision)
	}
	return names
}

func issuing(problems []resolve.Problem) bool {
	return slices.ContainsFunc(problems, func(p resolve.Problem) bool { return p.Reason == v1alpha1.ReasonCertificateNotReady })
}

// data of the gateway's ConfigMap.
func (p plan) data(endpoints dataplane.Endpoints) (map[string]string, error) {
	data := map[string]string{}
	put := func(key string, value any) error {
		b, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		data[key] = string(b)
		return nil
	}
	for name, revision := range p.Revisions {
		if err := put(dataplane.RevisionKey(name), revision); err != nil {
			return nil, err
		}
	}
	if err := put(dataplane.KeyEndpoints, endpoints); err != nil {
		return nil, err
	}
	return data, put(dataplane.KeyAssignment, p.Assignment)
}
