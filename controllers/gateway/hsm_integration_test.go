//go:build integration

package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/resources"
	"qtls.dev/qtls/internal/testenv"
)

// A gateway follows the pool that its key lies in: from its first problem to the
// revision that names the members, and what its agents may read.
func TestAGatewayFollowsItsHSMPool(t *testing.T) {
	c, ns, _ := start(t)
	secret, g := webSecret(t, ns), webGateway(ns)
	secret.Data[corev1.TLSPrivateKeyKey] = keypair.Reference{Pool: "vault", Label: "web-1"}.PEM()
	create(t, c, secret, webService(ns), g)
	change := func(o client.Object, change func()) {
		t.Helper()
		testenv.Eventually(t, func(ctx context.Context) error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
			change()
			return c.Update(ctx, o)
		})
	}
	has(t, c, g, v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalid, `set spec.hsmRef.name to "vault"`)

	change(g, func() { g.Spec.HSMRef = &v1alpha1.HSMPoolReference{Name: "vault"} })
	has(t, c, g, v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonHSMPoolNotFound, `there is no HSMPool "vault"`)

	pool := &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "vault"}, Spec: v1alpha1.HSMPoolSpec{
		Members: []v1alpha1.HSMMember{{Name: "a", Remote: &v1alpha1.RemoteHSM{Address: "a.hsm.example.com:7443", TLSSecretRef: v1alpha1.SecretReference{Name: "operator"}}}}}}
	create(t, c, pool)
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonSecretNotFound, "gatewayTLSSecretRef")

	change(pool, func() {
		pool.Spec.Members[0].Remote.GatewayTLSSecretRef = &v1alpha1.SecretReference{Name: "clients"}
	})
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, "")
	has(t, c, g, v1alpha1.ConditionHSM, v1alpha1.ReasonPending, "no pod is ready")
	members := func(want string) {
		t.Helper()
		testenv.Eventually(t, func(ctx context.Context) error {
			a, _, err := assignment(ctx, c, ns)
			if err != nil {
				return err
			}
			cm := &corev1.ConfigMap{}
			if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: dataplane.ObjectName("web")}, cm); err != nil {
				return err
			}
			var r dataplane.Revision
			if err := json.Unmarshal([]byte(cm.Data[dataplane.RevisionKey(a.Stable.Revision)]), &r); err != nil {
				return err
			}
			if r.HSM == nil || fmt.Sprint(r.HSM.Members) != want {
				return fmt.Errorf("HSM: %+v, want the members %s", r.HSM, want)
			}
			return nil
		})
	}
	members("[{a false a.hsm.example.com:7443 a.hsm.example.com clients 16}]")
	testenv.Eventually(t, func(ctx context.Context) error {
		role := &rbacv1.Role{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "web-gateway"}, role); err != nil {
			return err
		}
		for _, rule := range role.Rules {
			if slices.Contains(rule.Resources, "secrets") && slices.Contains(rule.ResourceNames, "clients") {
				return nil
			}
		}
		return fmt.Errorf("agents may not read the Secret: %+v", role.Rules)
	})

	// Another list of members is another revision.
	change(pool, func() { pool.Spec.Members[0].Remote.ServerName = "hsm.example.com" })
	members("[{a false a.hsm.example.com:7443 hsm.example.com clients 16}]")

	// A library in the pods is another pod, and a part of the revision.
	pin := v1alpha1.HSMToken{Token: "gw", PINSecretRef: v1alpha1.SecretReference{Name: "pin"}}
	change(pool, func() {
		pool.Spec.Members = append(pool.Spec.Members, v1alpha1.HSMMember{Name: "luna", Module: &v1alpha1.HSMModuleMember{
			HSMModule: v1alpha1.HSMModule{Image: "luna:10", Folder: "/opt/luna", Path: "/opt/luna/lib.so"}, HSMToken: pin}})
	})
	both := "[{a false a.hsm.example.com:7443 hsm.example.com clients 16} {luna true    4}]"
	members(both)
	pods := func(image string, replicas int32) {
		t.Helper()
		testenv.Eventually(t, func(ctx context.Context) error {
			d := &appsv1.Deployment{}
			if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "web-gateway"}, d); err != nil {
				return err
			}
			has := ""
			for _, v := range d.Spec.Template.Spec.Volumes {
				if v.Image != nil {
					has += v.Image.Reference
				}
			}
			if has != image || *d.Spec.Replicas != replicas {
				return fmt.Errorf("%d pods with the library of %q, want %d with that of %q", *d.Spec.Replicas, has, replicas, image)
			}
			return nil
		})
	}
	pods("luna:10", 2)
	change(pool, func() { pool.Spec.Members[1].Module.Image = "luna:11" })
	pods("luna:11", 2)

	// While a pod serves and has not taken up the configuration without a library,
	// the pods keep it; all else of them is as it is wanted.
	serving := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web-1", Labels: resources.Selector("web")},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "haproxy", Image: "none"}}}}
	create(t, c, serving)
	serving.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(t.Context(), serving); err != nil {
		t.Fatal(err)
	}
	has(t, c, g, v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgressing, "pod web-1")
	module := pool.Spec.Members[1]
	change(pool, func() { pool.Spec.Members = pool.Spec.Members[:1] })
	change(g, func() { g.Spec.Replicas = new(int32(3)) })
	pods("luna:11", 3)
	members(both)
	if err := c.Delete(t.Context(), serving, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	pods("", 3)
	change(pool, func() { pool.Spec.Members = append(pool.Spec.Members, module) })
	pods("luna:11", 3)
	members(both)

	// While its configuration is held, a gateway keeps the library that it signs with.
	if err := c.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonHSMPoolNotFound, `there is no HSMPool "vault"`)
	change(g, func() { g.Spec.Replicas = new(int32(4)) })
	pods("luna:11", 4)
	members(both)
	pool.ResourceVersion, pool.UID = "", ""
	pool.Spec.Members = pool.Spec.Members[:1]
	create(t, c, pool)
	pods("", 4)
	has(t, c, g, v1alpha1.ConditionResolvedRefs, v1alpha1.ReasonResolvedRefs, "")
}
