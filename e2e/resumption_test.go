//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
)

// resumingGateway serves web.example with so many replicas.
func (n namespace) resumingGateway(name string, replicas int32, sessions v1alpha1.SessionResumption) *v1alpha1.QTLSGateway {
	n.Helper()
	g := gateway(name, https("web", 443, "web.example"))
	g.Spec.Replicas, g.Spec.SessionResumption = ptr.To(replicas), sessions
	n.create(g)
	return g
}

// withWeb makes what resumingGateway needs, once in a namespace, and says how to ask for it.
func (n namespace) withWeb() request {
	n.Helper()
	a := n.withIssuer()
	n.startEcho("echo", 1, "")
	n.create(certificate("web", dual, "web.example"))
	return request{name: "web.example", ca: n.give("ca.pem", a.bundle())}
}

func sessions(lifetime time.Duration, store v1alpha1.TicketStore) v1alpha1.SessionResumption {
	return v1alpha1.SessionResumption{TicketLifetime: &metav1.Duration{Duration: lifetime}, Store: store}
}

// waitShared waits until clients resume on every pod.
func waitShared(t *testing.T, g *v1alpha1.QTLSGateway, within time.Duration) {
	t.Helper()
	waitReady(t, g, within)
	waitCondition(t, g, v1alpha1.ConditionSessionResumption, "True", v1alpha1.ReasonShared, within)
}

// direct are the addresses of a gateway's pods, and whose each is.
func (n namespace) direct(g *v1alpha1.QTLSGateway) (addresses []string, pods map[string]string) {
	n.Helper()
	pods = map[string]string{}
	for _, p := range n.gatewayPods(g) {
		a := join(p.Status.PodIP, 443)
		addresses, pods[a] = append(addresses, a), p.Name
	}
	return addresses, pods
}

// comeBack lets clients come back so many times, and says how many were resumed.
func (n namespace) comeBack(r request, times int, addresses ...string) summary {
	n.Helper()
	// Without an input, whose end, so near to its beginning, might not arrive.
	return n.stop(n.startProbe(r, nil, func() {}, returning(4, 60, times, addresses)...))
}

// share of the returning clients that were resumed.
func (s summary) share() float64 { return float64(s.Resumed) / max(1, float64(s.Returning)) }

func (s summary) resumption() string {
	return fmt.Sprintf("%d connections, %d failed; %d brought a ticket, %d of them (%.1f %%) were resumed", s.Total, s.Failed, s.Returning, s.Resumed, 100*s.share())
}

// enough says whether as many were resumed as is promised: 99 % of those that brought a ticket. A lifetime counts from the
// full handshake, however often a client comes back in between; so each of the clients makes a full one once in a lifetime,
// and the slower the machine, the more these are of all. They are left out.
func (s summary) enough(clients int, lifetime time.Duration) bool {
	full := clients * int(s.Seconds/lifetime.Seconds())
	return float64(s.Resumed) >= 0.99*float64(s.Returning-full)
}

// long is at least the lifetime of a ticket where the spec names none.
const long = time.Hour

// Clients come back to four replicas, whichever it is; with a store, and, for comparison, without one.
func TestResumption(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	r := n.withWeb()
	shared := n.resumingGateway("shared", 4, v1alpha1.SessionResumption{})
	// Nobody answers there: each pod has keys of its own.
	n.create(basicAuth("nobody"))
	alone := n.resumingGateway("alone", 4, v1alpha1.SessionResumption{Store: v1alpha1.TicketStore{Type: v1alpha1.TicketStoreExternal, External: &v1alpha1.ExternalStore{
		Addresses:      []v1alpha1.StoreAddress{"nowhere.invalid:6379"},
		CredentialsRef: v1alpha1.SecretReference{Name: "nobody"}, AgentCredentialsRef: v1alpha1.SecretReference{Name: "nobody"}}}})
	waitShared(t, shared, forReady)
	waitReady(t, alone, forReady)
	waitCondition(t, alone, v1alpha1.ConditionSessionResumption, "False", v1alpha1.ReasonPodsWithKeysOfOwn, forReady)

	for _, c := range []struct {
		g    *v1alpha1.QTLSGateway
		good func(summary) bool
		want string
	}{
		{shared, func(s summary) bool { return s.enough(4, long) }, "99 % or more"},
		{alone, func(s summary) bool { return s.share() > 0.1 && s.share() < 0.45 }, "about a quarter: the control"},
	} {
		addresses, pods := n.direct(c.g)
		if len(addresses) != 4 {
			t.Fatalf("gateway %s has %d pods", c.g.Name, len(addresses))
		}
		s := n.comeBack(r, 900, addresses...)
		result(t, "gateway %s, 4 replicas, %s: %s", c.g.Name, c.want, s.resumption())
		for _, from := range slices.Sorted(maps.Keys(s.Tickets)) {
			var row []string
			for _, to := range addresses {
				tally := s.Tickets[from][to]
				row = append(row, fmt.Sprintf("%s %d/%d", pods[to], tally.Resumed, tally.Returning))
				if from != to && c.g == alone && tally.Resumed > 0 {
					t.Errorf("a ticket of pod %s is taken by pod %s, which has other keys", pods[from], pods[to])
				}
				if tally.Returning == 0 {
					t.Errorf("no ticket of pod %s was brought to pod %s", pods[from], pods[to])
				}
			}
			result(t, "tickets of %s, resumed by: %s", pods[from], strings.Join(row, ", "))
		}
		if !c.good(s) || s.Failed > 0 || s.Returning < 500 {
			t.Errorf("gateway %s: %s\n%s; want %s, none failed", c.g.Name, s.resumption(), s, c.want)
		}
	}

	// A client with ML-DSA: its ticket is from one pod, and resumed by all.
	_, pods := n.direct(shared)
	first, _ := n.direct(shared)
	saved := n.saveTicket(r, first[0])
	for address, pod := range pods {
		if !n.resumes(r, address, saved) {
			t.Errorf("OpenSSL's session of pod %s is not resumed by pod %s", pods[first[0]], pod)
		}
	}
	result(t, "OpenSSL 3.5's session of pod %s (ML-DSA-65, X25519MLKEM768) is resumed by each of %d pods", pods[first[0]], len(pods))
	for _, pod := range n.gatewayPods(shared) {
		if resumed := n.metric(pod, "qtls_handshakes_total", `resumed="true"`); resumed == 0 {
			t.Errorf("pod %s has counted no resumed handshake", pod.Name)
		}
		if epoch := n.metric(pod, "qtls_agent_ticket_epoch"); epoch == 0 {
			t.Errorf("pod %s says that it has keys of its own", pod.Name)
		}
	}
	for _, pod := range n.gatewayPods(alone) {
		if epoch := n.metric(pod, "qtls_agent_ticket_epoch"); epoch != 0 {
			t.Errorf("pod %s without a store has epoch %v", pod.Name, epoch)
		}
	}
}

func basicAuth(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelTicketStore: v1alpha1.LabelTicketStoreValue}}, Type: corev1.SecretTypeBasicAuth,
		StringData: map[string]string{corev1.BasicAuthUsernameKey: name, corev1.BasicAuthPasswordKey: "of " + name}}
}

// saveTicket makes a session with OpenSSL's client and returns the file with its ticket.
func (n namespace) saveTicket(r request, address string) string {
	n.Helper()
	file := fmt.Sprintf("/tmp/%s/session-%d", n.name, time.Now().UnixNano())
	out := n.session(r, address, "-sess_out", file)
	if saved := n.runIn(trixie, "test", "-s", file); saved.code != 0 || !strings.Contains(out.stdout, "\nNew, TLSv1.3") {
		n.Fatalf("no session with %s: %s%s", address, out.stdout, out.stderr)
	}
	return file
}

// resumes says whether a pod resumes a session. It is served either way.
func (n namespace) resumes(r request, address, session string) bool {
	n.Helper()
	out := n.session(r, address, "-sess_in", session)
	if !strings.Contains(out.stdout, "HTTP/1.0 200") && !strings.Contains(out.stdout, "HTTP/1.1 200") {
		n.Fatalf("%s does not serve: %s%s", address, out.stdout, out.stderr)
	}
	return strings.Contains(out.stdout, "\nReused, TLSv1.3")
}

// session makes one request with OpenSSL's client.
func (n namespace) session(r request, address string, more ...string) ran {
	n.Helper()
	return n.sClient(trixie, "GET / HTTP/1.0\r\nHost: "+r.name+"\r\n\r\n", "",
		append([]string{"-connect", address, "-servername", r.name, "-CAfile", r.ca, "-verify_return_error"}, more...)...)
}

// Clients keep coming back while keys are rotated, pods replaced, added and taken away, HAProxy reloaded, and the
// operator and an agent killed.
func resumptionThroughChange(t *testing.T) {
	n := newNamespace(t)
	r := n.withWeb()
	const lifetime = 40 * time.Second // and the period of the rotations; keys are good for two, should these be late
	g := n.resumingGateway("web", 2, sessions(lifetime, v1alpha1.TicketStore{}))
	waitShared(t, g, forReady)
	r.address = address(g, 443)
	epoch := func() float64 { return n.metric(n.gatewayPods(g)[0], "qtls_agent_ticket_epoch") }
	before, start := epoch(), time.Now()
	whole := n.startReturning(r, 2, 20, 1, r.address)
	during := func(what string, change func()) {
		t.Helper()
		load := n.startReturning(r, 3, 45, 150, r.address)
		time.Sleep(time.Second)
		began := time.Now()
		change()
		time.Sleep(3 * time.Second)
		s := n.stop(load)
		result(t, "%s (%.0f s): %s", what, time.Since(began).Seconds(), s.resumption())
		if !s.enough(3, lifetime) || s.Failed > 0 || s.Returning < 100 {
			t.Errorf("%s: %s\n%s", what, s.resumption(), s)
		}
	}
	rotated := func(times float64) {
		t.Helper()
		was := epoch()
		eventually(t, forReady, fmt.Sprintf("the keys are rotated %.0f times", times), func(context.Context) (bool, string) {
			is := epoch()
			return is >= was+times, fmt.Sprintf("epoch %v after %v", is, was)
		})
	}
	during("two rotations", func() { rotated(2) })
	during("every pod is replaced", func() {
		pods := n.podUIDs(g)
		replacePods(t, g, 1)
		n.waitReplaced(g, pods, forReady)
	})
	during("a reload of HAProxy", func() {
		update(t, g, func(g *v1alpha1.QTLSGateway) {
			g.Spec.Listeners[0].Preference = v1alpha1.PreferClassical
		})
		waitProgrammed(t, g, forReady)
	})
	during("the operator is killed when a rotation is due", func() {
		for range 3 {
			killOperator(t)
			time.Sleep(5 * time.Second)
		}
		rotated(1)
	})
	during("an agent is killed", func() {
		pod := n.gatewayPods(g)[0]
		if _, err := execIn(t.Context(), n.name, pod.Name, "agent", nil, "sh", "-c", "kill -QUIT 1"); err != nil {
			t.Logf("the connection to the container ended with it: %v", err)
		}
		time.Sleep(5 * time.Second)
		waitShared(t, g, forReady)
	})
	for _, replicas := range []int32{1, 8, 2} {
		during(fmt.Sprintf("scaled to %d", replicas), func() {
			update(t, g, func(g *v1alpha1.QTLSGateway) { g.Spec.Replicas = ptr.To(replicas) })
			n.waitGatewayPods(g, int(replicas))
			waitShared(t, g, forReady)
		})
	}
	s := n.stop(whole)
	result(t, "all of it, %.0f s, epochs %v to %v: %s", time.Since(start).Seconds(), before, epoch(), s.resumption())
	if s.Failed > 0 || !s.enough(2, lifetime) || epoch() < before+3 {
		t.Errorf("all of it: %s\n%s", s.resumption(), s)
	}
}

// waitGatewayPods waits until there are so many, and no others.
func (n namespace) waitGatewayPods(g *v1alpha1.QTLSGateway, want int) {
	n.Helper()
	eventually(n.T, forReady, fmt.Sprintf("the gateway has %d ready pods", want), func(ctx context.Context) (bool, string) {
		ready := 0
		pods := n.pods(ctx, map[string]string{v1alpha1.LabelGateway: g.Name})
		for _, p := range pods {
			if isReady(&p) {
				ready++
			}
		}
		return ready == want && len(pods) == want, fmt.Sprintf("%d pods, %d ready", len(pods), ready)
	})
}

// Old tickets are worthless within seconds of the annotation, on every pod, also where a worker of the last configuration
// still ends its connections; new ones are as good as ever.
func TestTicketsAreDropped(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	r := n.withWeb()
	g := n.resumingGateway("web", 3, v1alpha1.SessionResumption{})
	waitShared(t, g, forReady)
	addresses, pods := n.direct(g)
	old := n.saveTicket(r, addresses[0])
	for _, a := range addresses {
		if !n.resumes(r, a, old) {
			t.Fatalf("before: pod %s does not resume the session of pod %s", pods[a], pods[addresses[0]])
		}
	}
	start := time.Now()
	update(t, g, func(g *v1alpha1.QTLSGateway) {
		g.Annotations = map[string]string{v1alpha1.AnnotationDropTickets: "a key leaked"}
	})
	eventually(t, forChange, "every pod refuses the old ticket", func(context.Context) (bool, string) {
		var still []string
		for _, a := range addresses {
			if n.resumes(r, a, old) {
				still = append(still, pods[a])
			}
		}
		return len(still) == 0, fmt.Sprintf("taken by %v", still)
	})
	result(t, "tickets dropped: refused by each of %d pods %.1f s after the annotation", len(addresses), time.Since(start).Seconds())
	waitShared(t, g, forChange)
	fresh := n.saveTicket(r, addresses[1])
	for _, a := range addresses {
		if !n.resumes(r, a, fresh) || n.resumes(r, a, old) {
			t.Errorf("afterwards: pod %s resumes the new session: %v, the old one: %v", pods[a], n.resumes(r, a, fresh), n.resumes(r, a, old))
		}
	}
}

// Of two stores one is killed again and again: rotations go on, and nobody notices.
func TestResumptionFailover(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	r := n.withWeb()
	const lifetime = 40 * time.Second // and the period of the rotations: a store that is away, and then another, makes them late
	g := n.resumingGateway("web", 2, sessions(lifetime, v1alpha1.TicketStore{Embedded: &v1alpha1.EmbeddedStore{HighAvailability: true}}))
	waitShared(t, g, forReady)
	var nodes []string
	for _, p := range n.pods(t.Context(), map[string]string{"app.kubernetes.io/name": "qtls-redis"}) {
		nodes = append(nodes, p.Name+" on "+p.Spec.NodeName)
	}
	result(t, "stores: %s", strings.Join(nodes, ", "))
	addresses, _ := n.direct(g)
	load := n.startReturning(r, 3, 45, 150, addresses...)
	epoch := func() float64 { return n.metric(n.gatewayPods(g)[0], "qtls_agent_ticket_epoch") }
	before := epoch()
	for turn := range 4 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: fmt.Sprintf("web-redis-%d", turn%2)}}
		if ok, state := get(t.Context(), pod); !ok {
			t.Fatal(state)
		}
		killed := pod.UID
		remove(t, pod, client.GracePeriodSeconds(0))
		time.Sleep(10 * time.Second)
		eventually(t, forReady, "the store is there again before the other is killed", func(ctx context.Context) (bool, string) {
			ok, state := get(ctx, pod)
			return ok && pod.UID != killed && isReady(pod), state
		})
	}
	eventually(t, forReady, "the keys were rotated twice", func(context.Context) (bool, string) {
		is := epoch()
		return is >= before+2, fmt.Sprintf("epoch %v after %v", is, before)
	})
	s := n.stop(load)
	result(t, "a store killed four times, epochs %v to %v: %s", before, epoch(), s.resumption())
	if !s.enough(3, lifetime) || s.Failed > 0 {
		t.Errorf("%s\n%s", s.resumption(), s)
	}
	waitShared(t, g, forChange)
}
