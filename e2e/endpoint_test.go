//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
)

// haproxyProcesses are the PIDs and start times of a pod's HAProxy: a reload starts a new worker.
func (n namespace) haproxyProcesses(pod string) string {
	n.Helper()
	const script = `for p in /proc/[0-9]*; do if [ "$(cat "$p/comm" 2>/dev/null)" = haproxy ]; then set -- $(sed 's/.*) //' "$p/stat"); echo "${p#/proc/}@${20}"; fi; done`
	r, err := execIn(n.Context(), n.name, pod, "haproxy", nil, "sh", "-c", script)
	if err != nil || r.code != 0 {
		n.Fatalf("processes of pod %s: %v %s", pod, err, r.stderr)
	}
	processes := strings.Fields(r.stdout)
	slices.Sort(processes)
	if len(processes) < 2 {
		n.Fatalf("pod %s: HAProxy is a master and a worker, found %v", pod, processes)
	}
	return strings.Join(processes, " ")
}

// podsThatAnswer connects so often that each backend has its turn, and counts who answered.
func (n namespace) podsThatAnswer(r request) map[string]int {
	n.Helper()
	s := n.stop(n.startLoad(r, 100, 60))
	if s.Failed > 0 {
		n.Errorf("%s", s)
	}
	return s.ByPod
}

func TestEndpointsChangeWithoutReload(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	a := n.withIssuer()
	ca := n.give("ca.pem", a.bundle())
	echo := n.startEcho("echo", 2, "")
	n.create(certificate("web", dual, "web.example"))
	g := gateway("endpoints", https("web", 443, "web.example"))
	n.create(g)
	waitReady(t, g, forReady)
	r := request{address: address(g, 443), name: "web.example", ca: ca}
	n.waitServed(openssl35, r)
	gatewayPod := n.gatewayPods(g)[0]
	pod := gatewayPod.Name
	before, reloads := n.haproxyProcesses(pod), n.metric(gatewayPod, "qtls_agent_reloads_total")

	load := n.startLoad(r, 20, 1)
	for _, replicas := range []int32{4, 1, 3} {
		update(t, echo, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(replicas) })
		want := n.waitPods(echo, int(replicas))
		changed := time.Now()
		var got []string
		eventually(t, forChange, fmt.Sprintf("exactly the %d pods of the backend answer", replicas), func(context.Context) (bool, string) {
			got = sortedKeys(n.podsThatAnswer(r))
			slices.Sort(want)
			return slices.Equal(got, want), fmt.Sprintf("%v answer, want %v", got, want)
		})
		result(t, "%d replicas: exactly %v answered, at most %.1f s after they were ready", replicas, got, time.Since(changed).Seconds())
	}
	s := n.stop(load)
	result(t, "meanwhile: %s", s)
	if s.Failed > 0 {
		t.Errorf("connections failed while the backend was scaled: %s", s)
	}
	after := n.haproxyProcesses(pod)
	result(t, "HAProxy's processes before: %s; after: %s", before, after)
	if before != after {
		t.Errorf("HAProxy was reloaded: its processes were %s and are %s", before, after)
	}

	// Without any endpoint the gateway says so, and recovers.
	update(t, echo, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](0) })
	eventually(t, forChange, "a gateway without endpoints answers 503", func(context.Context) (bool, string) {
		got := openssl35.send(n, r)
		return got.Status == 503, fmt.Sprintf("%s, status %d", got, got.Status)
	})
	update(t, echo, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](1) })
	n.waitPods(echo, 1)
	n.waitServed(openssl35, r)
	if again := n.haproxyProcesses(pod); again != before {
		t.Errorf("HAProxy was reloaded: its processes were %s and are %s", before, again)
	}
	now, changes := n.metric(gatewayPod, "qtls_agent_reloads_total"), n.metric(gatewayPod, "qtls_agent_server_changes_total")
	result(t, "the agent counts %v reloads before and %v after, and %v servers changed without one", reloads, now, changes)
	if now != reloads || changes == 0 {
		t.Errorf("the agent counts %v reloads before and %v after, and %v servers changed without one", reloads, now, changes)
	}
}
