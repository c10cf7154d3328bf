//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/ticketstore/embedded"
)

// store is a Redis of a test's own, for gateways whose store is External.
type store struct {
	namespace
	deployment *appsv1.Deployment
	spec       v1alpha1.TicketStore
}

// startStore runs one, with the image and configuration of an embedded one and a user more, who may do everything.
func (n namespace) startStore() store {
	n.Helper()
	host := fmt.Sprintf("store.%s.svc", n.name)
	credentials, err := embedded.New([]string{host}, time.Now())
	if err != nil {
		n.Fatal(err)
	}
	data, err := credentials.Data()
	if err != nil {
		n.Fatal(err)
	}
	data[embedded.KeyUsers] = append(data[embedded.KeyUsers], "user admin on nopass ~* &* +@all\n"...)
	labels := map[string]string{"app": "store"}
	s := store{namespace: n}
	s.deployment = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "store"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			SecurityContext: restrictedPod(), TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{{
				Name: "redis", Image: image("redis"), Command: embedded.ServerCommand(), SecurityContext: restrictedContainer(),
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(embedded.Port)}}},
				VolumeMounts:   []corev1.VolumeMount{{Name: "files", MountPath: embedded.FilesDir}, {Name: "data", MountPath: embedded.DataDir}},
			}},
			Volumes: []corev1.Volume{
				{Name: "files", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "store", DefaultMode: ptr.To[int32](0o440)}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
			},
		}},
	}}
	user := func(name string, role embedded.Role) *corev1.Secret {
		c := credentials.Connection(role, []string{host})
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelTicketStore: v1alpha1.LabelTicketStoreValue}}, Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{corev1.BasicAuthUsernameKey: c.Username, corev1.BasicAuthPasswordKey: c.Password}}
	}
	n.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "store"}, Data: data}, s.deployment,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "store"}, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: embedded.Port}}}},
		user("writer", embedded.Operator), user("reader", embedded.Agent))
	n.waitPods(s.deployment, 1)
	s.spec = v1alpha1.TicketStore{Type: v1alpha1.TicketStoreExternal, External: &v1alpha1.ExternalStore{
		Addresses: []v1alpha1.StoreAddress{v1alpha1.StoreAddress(join(host, embedded.Port))}, KeyPrefix: embedded.Prefix,
		CARefs:         []v1alpha1.CAReference{{Kind: v1alpha1.CAKindSecret, Name: "store", Key: embedded.KeyAuthority}},
		CredentialsRef: v1alpha1.SecretReference{Name: "writer"}, AgentCredentialsRef: v1alpha1.SecretReference{Name: "reader"}}}
	return s
}

// scale the store.
func (s store) scale(replicas int32) {
	s.Helper()
	update(s.T, s.deployment, func(d *appsv1.Deployment) { d.Spec.Replicas = &replicas })
	s.waitPods(s.deployment, int(replicas))
}

// do a command as the user who may do everything; in is the last argument.
func (s store) do(in string, words ...string) string {
	s.Helper()
	pods := s.pods(s.Context(), s.deployment.Spec.Selector.MatchLabels)
	if len(pods) != 1 {
		s.Fatalf("the store has %d pods", len(pods))
	}
	command := append([]string{"/usr/bin/valkey-cli", "-e", "--tls", "--cacert", embedded.FilesDir + "/" + embedded.KeyAuthority, "--user", "admin", "--pass", "any", "--no-auth-warning"}, words...)
	if in != "" {
		command = append(command[:5:5], append([]string{"-x"}, command[5:]...)...)
	}
	r, err := execIn(s.Context(), s.name, pods[0].Name, "redis", bytes.NewReader([]byte(in)), command...)
	if err != nil || r.code != 0 {
		s.Fatalf("%v: %v %s%s", words, err, r.stdout, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// waitNotShared waits until the condition says that clients do not resume on every pod, for the reason.
func waitNotShared(t *testing.T, g *v1alpha1.QTLSGateway, reason string) string {
	t.Helper()
	return waitCondition(t, g, v1alpha1.ConditionSessionResumption, "False", reason, forReady)
}

// What can happen to a store, and clients that keep coming back: no handshake fails; resumption falls back, says so in
// the condition, and recovers.
func TestStoreFaults(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	r := n.withWeb()
	st := n.startStore()
	const period = 12 * time.Second
	g := n.resumingGateway("web", 2, sessions(period, st.spec))
	waitShared(t, g, forReady)
	addresses, _ := n.direct(g)
	epoch := func() float64 { return n.metric(n.gatewayPods(g)[0], "qtls_agent_ticket_epoch") }
	ring := func() string {
		keys := st.do("", "--raw", "KEYS", "*")
		if strings.Count(keys, "ring:") != 1 {
			t.Fatalf("the store holds %q", keys)
		}
		return keys
	}
	secret := func(name, password string) (before string) {
		o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: name}}
		update(t, o, func(o *corev1.Secret) {
			before = string(o.Data[corev1.BasicAuthPasswordKey])
			o.Data[corev1.BasicAuthPasswordKey] = []byte(password)
		})
		return before
	}
	var right string
	for _, c := range []struct {
		name string
		// cause it, for longer than a rotation where it lasts; the condition then has the reason. mend ends it.
		cause  func()
		lasts  time.Duration
		reason string
		mend   func()
		// away: pods end with keys of their own.
		away bool
	}{
		{"killed for longer than a ring is good", func() { st.scale(0) }, 2*period + 8*time.Second, v1alpha1.ReasonStoreUnreachable, func() { st.scale(1) }, true},
		{"stuck for longer than a rotation, as behind a network that is cut", func() { st.do("", "CLIENT", "PAUSE", "18000", "ALL") }, 15 * time.Second, v1alpha1.ReasonStoreUnreachable, func() {}, false},
		{"a wrong password of the operator's", func() { right = secret("writer", "wrong") }, 5 * time.Second, v1alpha1.ReasonStoreRefusesAccess, func() { secret("writer", right) }, false},
		{"a wrong password of the pods'", func() { right = secret("reader", "wrong") }, 5 * time.Second, v1alpha1.ReasonStoreUnreachable, func() { secret("reader", right) }, false},
		{"garbage in place of the ring", func() { st.do("garbage", "SET", ring()) }, 8 * time.Second, "", func() {}, false},
		{"a ring that was cut", func() { st.do("99\n{\"ring\":", "SET", ring()) }, 8 * time.Second, "", func() {}, false},
		{"everything is deleted", func() { st.do("", "FLUSHALL") }, 8 * time.Second, "", func() {}, false},
	} {
		if c.lasts > period && !c.away {
			// A ring is good for two rotations from when it was made: of a new one
			// enough is left.
			last := epoch()
			eventually(t, forReady, "the keys are rotated", func(context.Context) (bool, string) {
				is := epoch()
				return is > last, fmt.Sprintf("epoch %v after %v", is, last)
			})
		}
		load := n.startReturning(r, 3, 45, 150, addresses...)
		before := epoch()
		age := time.Duration(n.metric(n.gatewayPods(g)[0], "qtls_agent_ticket_key_age_seconds") * float64(time.Second))
		began := time.Now()
		c.cause()
		said := ""
		if c.reason != "" {
			said = waitNotShared(t, g, c.reason)
		}
		time.Sleep(c.lasts - time.Since(began))
		if c.away {
			eventually(t, forReady, "the pods have keys of their own", func(context.Context) (bool, string) {
				is := epoch()
				return is == 0, fmt.Sprintf("epoch %v", is)
			})
		}
		local := epoch() == 0
		// The store was away for longer than it was to be where the machine stood still: then the
		// ring may have ended. Pods have it a moment later than it was made.
		inTime := age+time.Since(began) < 2*period-4*time.Second
		if local {
			said = waitNotShared(t, g, v1alpha1.ReasonPodsWithKeysOfOwn)
		}
		c.mend()
		mended := time.Now()
		waitCondition(t, g, v1alpha1.ConditionSessionResumption, "True", v1alpha1.ReasonShared, forReady)
		recovered := time.Since(mended)
		s := n.stop(load)
		result(t, "%s: %s; said: %q; %.1f s after its end all share again; epochs %v to %v", c.name, s.resumption(), said, recovered.Seconds(), before, epoch())
		if s.Failed > 0 {
			t.Errorf("%s: %s", c.name, s)
		}
		if local && !c.away && inTime {
			t.Errorf("%s: the pods have keys of their own", c.name)
		}
		if after := n.comeBack(r, 300, addresses...); !after.enough(4, period) || after.Failed > 0 {
			t.Errorf("%s, afterwards: %s", c.name, after.resumption())
		}
	}
	// Two rotations after all that.
	before := epoch()
	eventually(t, forReady, "the keys are rotated twice", func(context.Context) (bool, string) {
		is := epoch()
		return is >= before+2, fmt.Sprintf("epoch %v after %v", is, before)
	})
	for _, p := range n.gatewayPods(g) {
		if reached := n.metric(p, "qtls_agent_ticket_store_reached_timestamp_seconds"); time.Since(time.Unix(int64(reached), 0)) > time.Minute {
			t.Errorf("pod %s says that it reached the store at %v", p.Name, reached)
		}
	}
}
