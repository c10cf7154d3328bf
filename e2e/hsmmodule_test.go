//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
)

// A vendor's library in the gateway's own pods: what stands for it is kryoptic, with its configuration, its PIN and its
// token, which is on a volume that the pods and the operator's daemon mount, as some vendors' keys are.
func TestHSMModule(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	const module, pin = "/usr/lib/pkcs11/libkryoptic_pkcs11.so", "a-pin-of-a-test"
	configuration := func(database string) string {
		return fmt.Sprintf("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"/srv/token/%s.sql\"\n", database)
	}
	class := n.volume(corev1.ReadWriteMany)
	n.create(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "vendor"}, Data: map[string]string{"vendor.conf": configuration("token"), "new.conf": configuration("new")}},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "token"}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		}},
	)
	vendor := v1alpha1.HSMModuleMember{
		HSMModule: v1alpha1.HSMModule{
			Image: image("hsm"), Folder: "/usr/lib/pkcs11", Path: module,
			Files: []v1alpha1.HSMModuleFiles{
				{Folder: "/etc/vendor", ConfigMapRef: &v1alpha1.ConfigMapReference{Name: "vendor"}},
				{Folder: "/srv/token", PersistentVolumeClaimRef: &v1alpha1.PersistentVolumeClaimReference{Name: "token"}},
			},
			Environment: []v1alpha1.HSMModuleVariable{{Name: "KRYOPTIC_CONF", Value: "/etc/vendor/vendor.conf"}},
		},
		HSMToken: v1alpha1.HSMToken{Token: "vendor", PINSecretRef: v1alpha1.SecretReference{Name: "vendor-pin"}},
	}
	poolOf := func(name string, m v1alpha1.HSMModuleMember) *v1alpha1.HSMPool {
		return &v1alpha1.HSMPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HSMPoolSpec{
			Timeout: forSignature, Members: []v1alpha1.HSMMember{{Name: "net", Module: &m}}}}
	}
	pool := poolOf("vault", vendor)
	ca := n.give("ca.pem", n.withIssuer().bundle())
	n.startEcho("echo", 1, "")
	g := gateway("kept", https("kept", 443, "kept.example"), https("soft", 8443, "soft.example"))
	g.Spec.HSMRef = &v1alpha1.HSMPoolReference{Name: "vault"}
	n.create(pool, inHSM(certificate("kept", dual, "kept.example"), "vault"), certificate("soft", dual, "soft.example"), g)
	say := func(what, message string, words ...string) {
		t.Helper()
		result(t, "%s: %s", what, message)
		tells(t, message, words...)
	}

	// Without the PIN's Secret pods start, and serve what they have the keys of.
	say("no Secret with the PIN", waitCondition(t, pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINMissing, forReady), `Secret "vendor-pin" is not there`, "create it")
	eventually(t, forReady, "the gateway has an address", func(ctx context.Context) (bool, string) {
		ok, state := get(ctx, g)
		return ok && len(g.Status.Addresses) > 0, state + describe(g)
	})
	kept := request{address: address(g, 443), name: "kept.example", ca: ca}
	soft := request{address: address(g, 8443), name: "soft.example", ca: ca}
	n.waitServed(openssl35, soft)

	// restart has all pods with the library start anew, with the PIN as it is then.
	restart := func() {
		t.Helper()
		pods := append(n.gatewayPods(g), n.pods(t.Context(), map[string]string{v1alpha1.LabelHSMPool: pool.Name})...)
		for i := range pods {
			remove(t, &pods[i])
		}
		for _, p := range pods {
			uid := p.UID
			eventually(t, forReady, "pod "+p.Name+" is gone", func(ctx context.Context) (bool, string) {
				ok, state := get(ctx, &p)
				return !ok || p.UID != uid, state
			})
		}
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vendor-pin"}, Data: map[string][]byte{"pin": []byte(pin)}}
	n.create(secret)
	restart() // rather than to wait for the kubelet, as below
	// A token without a PIN is never seen: it would not be tried again.
	script := `umask 027; rm -f /srv/token/new.sql; printf another-pin-of-a-test > /tmp/so-pin && KRYOPTIC_CONF=/etc/vendor/new.conf hsmd init-soft-token --module ` + module +
		` --label vendor --pin-file /run/secrets/token/pin --so-pin-file /tmp/so-pin && mv /srv/token/new.sql /srv/token/token.sql`
	// The pod is looked up anew each time: it has just been restarted, and may be once more.
	eventually(t, forReady, "the token is made", func(ctx context.Context) (bool, string) {
		out, err := execIn(ctx, n.name, n.daemonPod(pool, "net").Name, "hsmd", nil, "sh", "-c", script)
		return err == nil && out.code == 0, fmt.Sprint(err, out.stderr)
	})
	kept = n.waitKept(pool, g, kept)
	n.mustHaveNoKeyOf("kept")
	// signed are the signatures of the gateway's pod and of the operator's daemon.
	signed := func() (pod, operator float64) {
		t.Helper()
		return n.metric(n.gatewayPods(g)[0], "qtls_hsm_signature_duration_seconds_count", `member="net"`), n.made(pool, "net")
	}
	podBefore, operatorBefore := signed()
	const rounds = 10
	for range rounds {
		n.mustServeDual(kept)
	}
	var pod, operator float64
	eventually(t, forChange, "the signatures are counted", func(context.Context) (bool, string) { // HAProxy writes them down once a second
		pod, operator = signed()
		return pod-podBefore >= 2*rounds, fmt.Sprintf("%v in the pod", pod-podBefore)
	})
	result(t, "%d handshakes, half of them with ML-DSA-65, half with ECDSA-P256: the library in the pod signed %.0f times, the operator's daemon %.0f times",
		2*rounds, pod-podBefore, operator-operatorBefore)
	if operator != operatorBefore {
		t.Errorf("%v signatures of the operator's daemon for %d handshakes", operator-operatorBefore, 2*rounds)
	}

	// The keys of a renewal are made by the operator's daemon, and found by the library in the pod.
	stop := n.both("keys are renewed", kept)
	renew(t, n, "kept", "once")
	c := &v1alpha1.PQCCertificate{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: "kept"}}
	n.waitSerial(openssl35, kept, serialOf(t, c, mlDSA65), forChange)
	n.waitSerial(go127, kept, serialOf(t, c, ecdsaP256), forChange)
	result(t, "%d connections while both keys were renewed", stop())

	// The control: with a wrong PIN what starts cannot sign, says so, and serves what it has the keys of.
	update(t, secret, func(s *corev1.Secret) { s.Data["pin"] = []byte("not-the-pin-of-a-test") })
	restart()
	say("a wrong PIN", waitCondition(t, pool, v1alpha1.ConditionReady, "False", v1alpha1.ReasonPINWrong, forReady), `"net"`, "CKR_PIN_INCORRECT", "put the token's PIN", `Secret "vendor-pin"`)
	say("a wrong PIN, as a pod has it", waitCondition(t, g, v1alpha1.ConditionHSM, "False", v1alpha1.ReasonHSMNotReady, forReady), `"net"`, "CKR_PIN_INCORRECT")
	n.waitServed(openssl35, soft)
	n.mustServeDual(soft)
	for _, client := range []tlsClient{openssl35, go127} {
		if got := client.send(n, kept); got.Served {
			t.Errorf("%s: served with a key whose PIN is wrong: %s", client.name, got)
		}
	}

	// The right one is taken up without a restart, when the kubelet has written its file.
	reloads := n.metric(n.gatewayPods(g)[0], "qtls_agent_reloads_total")
	update(t, secret, func(s *corev1.Secret) { s.Data["pin"] = []byte(pin) })
	n.waitKept(pool, g, kept)
	if after := n.metric(n.gatewayPods(g)[0], "qtls_agent_reloads_total"); after != reloads {
		t.Errorf("%v reloads of HAProxy for the right PIN, want none", after-reloads)
	}

	// Each mistake has a reason of its own.
	elsewhere, nowhere := vendor, vendor
	elsewhere.Path = "/usr/lib/pkcs11/libelsewhere.so"
	nowhere.Files = []v1alpha1.HSMModuleFiles{{Folder: "/etc/vendor", ConfigMapRef: &v1alpha1.ConfigMapReference{Name: "nobody"}}}
	noLibrary, noFiles := poolOf("no-library", elsewhere), poolOf("no-files", nowhere)
	n.create(noLibrary, noFiles)
	say("a library that is not there", waitCondition(t, noLibrary, v1alpha1.ConditionReady, "False", v1alpha1.ReasonLibraryNotLoaded, forReady), "libelsewhere.so", "spec.members[net].module.path")
	say("a ConfigMap that is not there", waitCondition(t, noFiles, v1alpha1.ConditionReady, "False", v1alpha1.ReasonConfigMapNotFound, forReady), `ConfigMap "nobody" is not there`)

	// The PIN is in a file, and nowhere else.
	for _, p := range append(n.gatewayPods(g), n.daemonPod(pool, "net")) {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
			log, err := cluster.clientset.CoreV1().Pods(n.name).GetLogs(p.Name, &corev1.PodLogOptions{Container: c.Name}).DoRaw(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, log...)
		}
		if strings.Contains(string(text), "pin-of-a-test") {
			t.Errorf("pod %s or its logs have the PIN", p.Name)
		}
	}
}
