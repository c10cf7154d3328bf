package hsmpool

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"qtls.dev/qtls/api/v1alpha1"
)

// The API does not let one ask for it: it would be an error of reading, for ever.
func TestANameThatNothingCanHaveIsOfWhatIsNotThere(t *testing.T) {
	reader := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("invalid resource name")
		}}).Build()
	if there, err := isThere(t.Context(), reader, &v1alpha1.HSMPool{}, &corev1.Secret{}, "team-a/pin"); there || err != nil {
		t.Errorf("there %t, %v", there, err)
	}
}

// Kubernetes starts no other pod of its name before the node says that it has ended.
func TestAPodWhoseNodeIsLost(t *testing.T) {
	const lost = `pod "dev-soft-hsmd-0" was deleted and does not end, so that no other takes its place: its node "node-1" does not answer; where that is down for good, delete the Node, or taint it with node.kubernetes.io/out-of-service`
	const notReady = `the pod of StatefulSet "dev-soft-hsmd" is not ready`
	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: "tls", Name: "dev"}}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "tls", Name: "dev-soft-hsmd"}}
	pod := func(deleted *metav1.Time) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tls", Name: "dev-soft-hsmd-0", DeletionTimestamp: deleted, Finalizers: []string{"test/stays"}},
			Spec: corev1.PodSpec{NodeName: "node-1"}}
	}
	ago := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(-d)} }
	for name, c := range map[string]struct {
		objects []client.Object
		says    string
	}{
		"no pod yet":                 {[]client.Object{set}, notReady},
		"a pod that starts":          {[]client.Object{set, pod(nil)}, notReady},
		"one that ends":              {[]client.Object{set, pod(ago(-20 * time.Second))}, notReady},
		"one that should have ended": {[]client.Object{set, pod(ago(time.Minute))}, notReady},
		"one on a node that is lost": {[]client.Object{set, pod(ago(time.Hour))}, lost},
	} {
		r := &Reconciler{APIReader: fake.NewClientBuilder().WithObjects(c.objects...).Build(), Clock: clocktesting.NewFakePassiveClock(noon)}
		p := r.waitsFor(t.Context(), pool, "soft")
		if p == nil || p.Reason != v1alpha1.ReasonDaemonNotReady || !strings.HasPrefix(p.Message, `member "soft": `+c.says) {
			t.Errorf("%s: %+v, want it to say %q", name, p, c.says)
		}
	}
}
