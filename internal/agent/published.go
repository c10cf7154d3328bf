package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/haproxy"
)

// published is what the operator wants of this pod, read and found sound.
type published struct {
	Target    dataplane.Target
	Revision  dataplane.Revision
	Endpoints dataplane.Endpoints
}

// unusable says why the published target cannot be run, whatever HAProxy would
// say. The Target is zero where not even that could be read.
type unusable struct {
	Target  dataplane.Target
	Message string
}

func (u *unusable) Error() string { return u.Message }

// parsePublished reads the gateway's ConfigMap for one pod. Its error is an
// *unusable.
func parsePublished(data map[string]string, pod string) (*published, error) {
	var assignment dataplane.Assignment
	if err := decode(data, dataplane.KeyAssignment, &assignment); err != nil {
		return nil, &unusable{Message: err.Error()}
	}
	p := &published{Target: assignment.For(pod)}
	refuse := func(err error) (*published, error) { return nil, &unusable{Target: p.Target, Message: err.Error()} }
	if err := decode(data, dataplane.RevisionKey(p.Target.Revision), &p.Revision); err != nil {
		return refuse(err)
	}
	if name := p.Revision.Name(); name != p.Target.Revision {
		return refuse(fmt.Errorf("the content of revision %.64q has the name %q: it was changed after it was published", p.Target.Revision, name))
	}
	if err := checkFiles(p.Revision); err != nil {
		return refuse(err)
	}
	if err := decode(data, dataplane.KeyEndpoints, &p.Endpoints); err != nil {
		return refuse(err)
	}
	if err := checkEndpoints(p.Endpoints); err != nil {
		return refuse(err)
	}
	return p, nil
}

func decode(data map[string]string, key string, into any) error {
	text, ok := data[key]
	if !ok {
		return fmt.Errorf("the gateway's ConfigMap has no key %.100q", key)
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("key %.100q of the gateway's ConfigMap: %w", key, err)
	}
	return nil
}

// fileName of a certificate or of ticket keys: one path element.
var fileName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// checkFiles lets a revision write nothing outside its folder, and nothing
// there that is the agent's own.
func checkFiles(r dataplane.Revision) error {
	for name := range r.Files {
		first, _, below := strings.Cut(name, "/")
		if !filepath.IsLocal(name) || path.Clean(name) != name || strings.ContainsAny(name, "\\\x00") ||
			!below && slices.Contains(ownFiles, name) || first == certificatesDir || first == ticketsDir || first == hsmDir {
			return fmt.Errorf("a file of the revision has the name %.100q, which it cannot have", name)
		}
	}
	for _, c := range r.Certificates {
		if !fileName.MatchString(c.Name) || !fileName.MatchString(c.Secret) {
			return fmt.Errorf("a certificate of the revision has the name %.100q and the Secret %.100q: they are to be names of Kubernetes objects", c.Name, c.Secret)
		}
	}
	if err := checkHSM(r.HSM); err != nil {
		return err
	}
	return checkTickets(r.Tickets)
}

// ringID is what a ring is called in its store.
var ringID = regexp.MustCompile(`^[0-9a-f]{1,64}$`)

func checkTickets(t *dataplane.Tickets) error {
	if t == nil {
		return nil
	}
	if !ringID.MatchString(t.Ring) || t.RotationSeconds < 1 {
		return fmt.Errorf("the ticket keys of the revision are of ring %.100q, rotated each %d seconds: want an ID in hexadecimal, and 1 second or more", t.Ring, t.RotationSeconds)
	}
	for _, f := range t.Files {
		if !fileName.MatchString(f.Name) {
			return fmt.Errorf("a file of ticket keys of the revision has the name %.100q, which it cannot have", f.Name)
		}
	}
	return nil
}

// memberAddress is host:port, an IPv6 address in brackets; memberName is a
// member's name, or a host's.
var (
	memberAddress = regexp.MustCompile(`^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$`)
	memberName    = regexp.MustCompile(`^[A-Za-z0-9:]([-A-Za-z0-9.:]*[A-Za-z0-9:])?$`)
)

// checkHSM lets nothing but values stand in the module's configuration.
func checkHSM(h *dataplane.HSM) error {
	if h == nil {
		return nil
	}
	if !fileName.MatchString(h.Pool) || h.TimeoutMilliseconds < 1 || len(h.Members) == 0 {
		return fmt.Errorf("the HSMPool of the revision is %.100q, with a time-out of %d ms and %d members: want the name of a Kubernetes object, 1 ms or more, and members", h.Pool, h.TimeoutMilliseconds, len(h.Members))
	}
	for _, m := range h.Members {
		if m.InPod {
			if !fileName.MatchString(m.Name) || m.Address+m.ServerName+m.Secret != "" {
				return fmt.Errorf("member %.100q of HSMPool %q has its library in the pod, and the address %.100q, the server name %.100q and the Secret %.100q, which cannot be", m.Name, h.Pool, m.Address, m.ServerName, m.Secret)
			}
		} else if !fileName.MatchString(m.Name) || !fileName.MatchString(m.Secret) || !memberAddress.MatchString(m.Address) || !memberName.MatchString(m.ServerName) {
			return fmt.Errorf("member %.100q of HSMPool %q has the address %.100q, the server name %.100q and the Secret %.100q, which cannot be", m.Name, h.Pool, m.Address, m.ServerName, m.Secret)
		}
		if m.Sessions < 1 || m.Sessions > v1alpha1.MostHSMSessions {
			return fmt.Errorf("member %q of HSMPool %q has %d sessions: want 1 to %d", m.Name, h.Pool, m.Sessions, v1alpha1.MostHSMSessions)
		}
	}
	return nil
}

func checkEndpoints(endpoints dataplane.Endpoints) error {
	for _, group := range slices.Sorted(maps.Keys(endpoints)) {
		for _, e := range endpoints[group] {
			if a, err := netip.ParseAddr(e.Address); err != nil || a.Zone() != "" || e.Port < 1 || e.Port > 65535 {
				return fmt.Errorf("endpoint %.100q, port %d, of %.100q: not an IP address and a port", e.Address, e.Port, group)
			}
		}
	}
	return nil
}

// endpointsFor are the endpoints that server groups with these slots get. A
// group that the operator does not name keeps those that it has: the operator
// names those of the revisions that it publishes, and a pod may still run an
// earlier one, which serves whole while it does.
func (p *published) endpointsFor(slots haproxy.Slots) dataplane.Endpoints {
	all := maps.Clone(p.Endpoints)
	if all == nil {
		all = dataplane.Endpoints{}
	}
	for group, list := range slots {
		if _, ok := all[group]; ok {
			continue
		}
		for _, s := range list {
			if s.Endpoint != nil {
				all[group] = append(all[group], *s.Endpoint)
			}
		}
	}
	return all
}
