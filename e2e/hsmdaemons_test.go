//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/keypair"
)

// Daemons that the operator runs: of tokens in software, and of a library out of an image.

// startKept has a gateway "kept" serve a dual certificate with keys in a new pool.
func (n namespace) startKept(pool *v1alpha1.HSMPool) (*v1alpha1.QTLSGateway, request) {
	n.Helper()
	a := n.withIssuer()
	n.startEcho("echo", 1, "")
	g := gateway("kept", https("kept", 443, "kept.example"))
	g.Spec.HSMRef = &v1alpha1.HSMPoolReference{Name: pool.Name}
	n.create(pool, inHSM(certificate("kept", dual, "kept.example"), pool.Name), g)
	return g, request{name: "kept.example", ca: n.give("ca.pem", a.bundle())}
}

// waitKept waits until the gateway of startKept serves both certificates.
func (n namespace) waitKept(pool *v1alpha1.HSMPool, g *v1alpha1.QTLSGateway, r request) request {
	n.Helper()
	waitReady(n.T, pool, forReady)
	waitReady(n.T, g, forReady)
	r.address = address(g, 443)
	n.waitServed(openssl35, r)
	n.waitServed(go127, r)
	return r
}

// mustHaveNoKeyOf fails the test if a Secret of the cluster has a private key of a PQCCertificate.
func (n namespace) mustHaveNoKeyOf(certificate string) {
	n.Helper()
	all, found := n.secrets(), 0
	for _, algorithm := range dual {
		s := n.tlsSecret(certificate, algorithm)
		public := publicKey(n.T, s.Data["tls.crt"])
		for name, data := range all {
			for field, value := range data {
				for _, key := range privateKeys(value) {
					found++
					if key == public {
						n.Errorf("Secret %s, %s: the private key of the certificate in Secret %s", name, field, s.Name)
					}
				}
			}
		}
	}
	if found == 0 { // such as those of the authorities
		n.Errorf("no private key at all in %d Secrets: the search finds none", len(all))
	}
}

// daemonPod is that of a member's daemon, once its container runs.
func (n namespace) daemonPod(pool *v1alpha1.HSMPool, member string) corev1.Pod {
	n.Helper()
	var pod corev1.Pod
	eventually(n.T, forReady, "the daemon of member "+member+" runs", func(ctx context.Context) (bool, string) {
		for _, pod = range n.pods(ctx, map[string]string{v1alpha1.LabelHSMPool: pool.Name, v1alpha1.LabelHSMMember: member}) {
			if s := pod.Status.ContainerStatuses; pod.DeletionTimestamp == nil && len(s) == 1 && s[0].State.Running != nil {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", pod.Status)
	})
	return pod
}

// daemonMetrics is where a member's daemon has its metrics.
func (n namespace) daemonMetrics(pool *v1alpha1.HSMPool, member string) string {
	n.Helper()
	return join(n.daemonPod(pool, member).Status.PodIP, 7444)
}

// made is how many signatures a member's daemon has made since it started.
func (n namespace) made(pool *v1alpha1.HSMPool, member string) float64 {
	n.Helper()
	return n.signatures(n.daemonMetrics(pool, member))
}

// waitMaking waits until a member's daemon makes signatures.
func (n namespace) waitMaking(pool *v1alpha1.HSMPool, member string) {
	n.Helper()
	n.waitSignatures("member "+member+" signs", forReady, func() string { return n.daemonMetrics(pool, member) })
}

// A token in software that the operator runs: enough to try it all, and no more.
func TestSoftToken(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	class := n.volume(corev1.ReadWriteOnce)
	pool := &v1alpha1.HSMPool{
		ObjectMeta: metav1.ObjectMeta{Name: "dev"},
		Spec: v1alpha1.HSMPoolSpec{Timeout: forSignature, Members: []v1alpha1.HSMMember{{
			Name: "soft", SoftToken: &v1alpha1.SoftToken{Storage: v1alpha1.SoftTokenStorage{StorageClassName: &class}},
		}}},
	}
	start := time.Now()
	g, r := n.startKept(pool)
	tells(t, waitCondition(t, pool, v1alpha1.ConditionDevelopment, "True", v1alpha1.ReasonSoftToken, forReady), "not for production", `"soft"`)
	r = n.waitKept(pool, g, r)
	result(t, "served with keys of a token in software %.1f s after all was created", time.Since(start).Seconds())
	n.mustServeDual(r)
	n.mustHaveNoKeyOf("kept")
	n.authorityIn(pool, "soft", "kept")

	// Its pod goes, and another takes its place: the token is as it was, and HAProxy finds it.
	gone := n.daemonPod(pool, "soft")
	reloads, serial := n.metric(n.gatewayPods(g)[0], "qtls_agent_reloads_total"), n.mustServe(openssl35, r).Serial
	remove(t, &gone, client.GracePeriodSeconds(0))
	eventually(t, forReady, "another pod of the daemon is ready", func(context.Context) (bool, string) {
		pod := n.daemonPod(pool, "soft")
		return pod.UID != gone.UID && isReady(&pod), fmt.Sprintf("%+v", pod.Status)
	})
	n.waitServed(openssl35, r)
	n.waitServed(go127, r)
	if got := n.mustServe(openssl35, r).Serial; got != serial {
		t.Errorf("the certificate %s was served before, and now %s: of another key", serial, got)
	}
	if after := n.metric(n.gatewayPods(g)[0], "qtls_agent_reloads_total"); after != reloads {
		t.Errorf("%v reloads of HAProxy, want none", after-reloads)
	}
	waitReady(t, pool, forReady)
}

// authorityIn has an authority whose keys are in a pool sign, as its member counts: first for keys in Secrets, and then for
// those that the pool has already and another PQCCertificate serves with.
func (n namespace) authorityIn(pool *v1alpha1.HSMPool, member, existing string) {
	n.Helper()
	start := time.Now()
	root := inHSM(certificate("root", dual), pool.Name)
	root.Spec.IsCA, root.Spec.CommonName, root.Spec.IssuerRef.Name = true, "Root in an HSM", "self-signed"
	root.Spec.Duration = &metav1.Duration{Duration: 87600 * time.Hour} // longer than what it signs
	issuer := caIssuer("vaulted", "root-ml-dsa-65", "root-ecdsa-p256")
	issuer.Spec.CA.HSMRef = &v1alpha1.HSMPoolReference{Name: pool.Name}
	n.create(&v1alpha1.PQCIssuer{ObjectMeta: metav1.ObjectMeta{Name: "self-signed"}, Spec: v1alpha1.IssuerSpec{SelfSigned: &v1alpha1.SelfSignedIssuer{}}}, root, issuer)
	waitReady(n.T, issuer, forReady)
	if a := issuer.Status.Authorities; len(a) != len(dual) || a[0].HSMPool != pool.Name || a[1].HSMPool != pool.Name {
		n.Errorf("the issuer has the authorities %+v", a)
	}

	issue := func(c *v1alpha1.PQCCertificate) (signatures float64) {
		n.Helper()
		c.Spec.IssuerRef.Name = issuer.Name
		before := n.made(pool, member)
		n.create(c)
		waitReady(n.T, c, forReady)
		for _, algorithm := range dual {
			anchors := x509.NewCertPool()
			anchors.AddCert(firstCertificate(string(n.tlsSecret(root.Name, algorithm).Data["tls.crt"])))
			leaf := firstCertificate(string(n.tlsSecret(c.Name, algorithm).Data["tls.crt"]))
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: anchors, DNSName: string(c.Spec.DNSNames[0])}); err != nil {
				n.Errorf("%s certificate %s: %v", algorithm, c.Name, err)
			}
		}
		return n.made(pool, member) - before
	}
	forSecrets := issue(certificate("signed", dual, "signed.example"))
	adopted := inHSM(certificate("adopted", dual, "adopted.example"), pool.Name)
	for _, algorithm := range dual {
		reference, err := keypair.ParseReference(n.tlsSecret(existing, algorithm).Data["tls.key"])
		if err != nil {
			n.Fatal(err)
		}
		adopted.Spec.KeyStorage.ExistingKeys = append(adopted.Spec.KeyStorage.ExistingKeys, v1alpha1.ExistingKey{Algorithm: algorithm, Label: reference.Label})
	}
	forKeys := issue(adopted)
	result(n.T, "an authority in the HSM, after %.1f s: member %s signed %.0f times for %d certificates of keys in Secrets, and %.0f times for %d requests and certificates of keys that it had",
		time.Since(start).Seconds(), member, forSecrets, len(dual), forKeys, len(dual))
	if forSecrets < float64(len(dual)) || forKeys < float64(2*len(dual)) {
		n.Errorf("%v signatures for %d certificates, and %v for as many and their requests", forSecrets, len(dual), forKeys)
	}
	for _, algorithm := range dual {
		s, of := n.tlsSecret(adopted.Name, algorithm), n.tlsSecret(existing, algorithm)
		if publicKey(n.T, s.Data["tls.crt"]) != publicKey(n.T, of.Data["tls.crt"]) || !bytes.Equal(s.Data["tls.key"], of.Data["tls.key"]) {
			n.Errorf("Secret %s: its certificate is not of the key of Secret %s", s.Name, of.Name)
		}
	}
	n.mustHaveNoKeyOf(root.Name)
	n.mustHaveNoKeyOf(adopted.Name)
}

// Two daemons of one token: it is on a volume that both mount, and either signs when the other's pod is gone.
func TestSoftTokensShareAToken(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	class := n.volume(corev1.ReadWriteMany)
	soft := func(name string) v1alpha1.HSMMember {
		return v1alpha1.HSMMember{Name: name, SoftToken: &v1alpha1.SoftToken{Storage: v1alpha1.SoftTokenStorage{Shared: true, StorageClassName: &class}}}
	}
	pool := &v1alpha1.HSMPool{
		ObjectMeta: metav1.ObjectMeta{Name: "dev"},
		Spec:       v1alpha1.HSMPoolSpec{Timeout: forSignature, Members: []v1alpha1.HSMMember{soft("a"), soft("b")}},
	}
	g, r := n.startKept(pool)
	r = n.waitKept(pool, g, r)
	n.mustHaveNoKeyOf("kept")

	stop := n.both("pods of a shared token are deleted in turn", r)
	for _, turn := range [][2]string{{"a", "b"}, {"b", "a"}} {
		gone, other := n.daemonPod(pool, turn[0]), turn[1]
		remove(t, &gone, client.GracePeriodSeconds(0))
		n.waitMaking(pool, other)
		eventually(t, forReady, "another pod of member "+turn[0]+" is ready", func(context.Context) (bool, string) {
			pod := n.daemonPod(pool, turn[0])
			return pod.UID != gone.UID && isReady(&pod), fmt.Sprintf("%+v", pod.Status)
		})
		result(t, "the pod of member %s was deleted, and member %s signed", turn[0], other)
		n.waitMaking(pool, "a") // the first that can
	}
	total := stop()
	result(t, "%d connections while the pods of both members were replaced", total)
	waitReady(t, pool, forReady)
}

// volume is a PersistentVolume for the only claim of a class: a folder of a node, which is emptied when the test ends. The
// cluster need not provide any.
func (n namespace) volume(mode corev1.PersistentVolumeAccessMode) (class string) {
	n.Helper()
	const folder, inPod = "/tmp/qtls-", "/shared"
	class = n.name
	kind := corev1.HostPathDirectoryOrCreate
	onNode := corev1.HostPathVolumeSource{Path: folder + n.name, Type: &kind}
	// Root's, on the node: not for the test's own namespace, where pods are restricted.
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name + "-volume", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "folder"},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)),
			SecurityContext:               &corev1.PodSecurityContext{RunAsUser: new(int64(0))},
			Volumes:                       []corev1.Volume{{Name: "folder", VolumeSource: corev1.VolumeSource{HostPath: &onNode}}},
			Containers: []corev1.Container{{
				Name: "folder", Image: registry + "qtls-client:" + trixie, Command: []string{"sleep", "infinity"},
				VolumeMounts: []corev1.VolumeMount{{Name: "folder", MountPath: inPod}},
			}},
		},
	}
	inFolder := func(ctx context.Context, command ...string) {
		n.Helper()
		if out, err := execIn(ctx, ns.Name, pod.Name, "folder", nil, command...); err != nil || out.code != 0 {
			n.Errorf("%v in the folder of the volume: %v %s", command, err, out.stderr)
		}
	}
	for _, o := range []client.Object{ns, pod} {
		if err := cluster.Create(n.Context(), o); err != nil {
			n.Fatal(err)
		}
	}
	eventually(n.T, forReady, "the pod with the volume's folder runs", func(ctx context.Context) (bool, string) {
		ok, state := get(ctx, pod)
		return ok && isReady(pod), state + string(pod.Status.Phase)
	})
	inFolder(n.Context(), "chmod", "0777", inPod) // daemons are not root
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}
	if ok, state := get(n.Context(), node); !ok {
		n.Fatal(state)
	}
	here := corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node.Labels[corev1.LabelHostname]}}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &onNode},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{here}},
			}}},
		},
	}
	if err := cluster.Create(n.Context(), volume); err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), forReady)
		defer cancel()
		inFolder(ctx, "find", inPod, "-mindepth", "1", "-delete")
		for _, o := range []client.Object{volume, ns} {
			if err := client.IgnoreNotFound(cluster.Delete(ctx, o)); err != nil {
				n.Errorf("%T %s: %v", o, o.GetName(), err)
			}
		}
	})
	return class
}

// A vendor's library out of an image, with its configuration and PIN: what stands for it is kryoptic, whose token is made
// where the library's owner would attach one.
func TestHSMDaemon(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	const module = "/usr/lib/pkcs11/libkryoptic_pkcs11.so"
	configuration := func(database string) string {
		return fmt.Sprintf("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"/tmp/%s.sql\"\n", database)
	}
	n.create(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "vendor"}, Data: map[string]string{"vendor.conf": configuration("token"), "new.conf": configuration("new")}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vendor-pin"}, StringData: map[string]string{"pin": "a-pin-of-a-test"}},
	)
	pool := &v1alpha1.HSMPool{
		ObjectMeta: metav1.ObjectMeta{Name: "vault"},
		Spec: v1alpha1.HSMPoolSpec{Timeout: forSignature, Members: []v1alpha1.HSMMember{{Name: "card", Daemon: &v1alpha1.HSMDaemon{
			Module: v1alpha1.HSMModule{
				Image: image("hsm"), Folder: "/usr/lib/pkcs11", Path: module, Copy: true, // the image's folder is mounted in the tests of modules
				Files:       []v1alpha1.HSMModuleFiles{{Folder: "/etc/vendor", ConfigMapRef: &v1alpha1.ConfigMapReference{Name: "vendor"}}},
				Environment: []v1alpha1.HSMModuleVariable{{Name: "KRYOPTIC_CONF", Value: "/etc/vendor/vendor.conf"}},
			},
			Token: "vendor", PINSecretRef: v1alpha1.SecretReference{Name: "vendor-pin"},
		}}}},
	}
	g, r := n.startKept(pool)
	pod := n.daemonPod(pool, "card")
	// A token without a PIN is never seen: hsmd would not try its PIN again.
	script := `umask 077; rm -f /tmp/new.sql; printf another-pin-of-a-test > /tmp/so-pin && KRYOPTIC_CONF=/etc/vendor/new.conf hsmd init-soft-token --module ` + module +
		` --label vendor --pin-file /run/secrets/token/pin --so-pin-file /tmp/so-pin && mv /tmp/new.sql /tmp/token.sql`
	eventually(t, forReady, "the token is made", func(ctx context.Context) (bool, string) {
		out, err := execIn(ctx, n.name, pod.Name, "hsmd", nil, "sh", "-c", script)
		return err == nil && out.code == 0, fmt.Sprint(err, out.stderr)
	})
	start := time.Now()
	r = n.waitKept(pool, g, r)
	result(t, "served with keys of a library out of an image %.1f s after its token was there", time.Since(start).Seconds())
	n.mustHaveNoKeyOf("kept")
	before := n.made(pool, "card")
	const rounds = 10
	for range rounds {
		n.mustServeDual(r)
	}
	signed := n.made(pool, "card") - before
	result(t, "%d handshakes, half of them with ML-DSA-65, half with ECDSA-P256: the daemon signed %.0f times", 2*rounds, signed)
	if signed < 2*rounds {
		t.Errorf("%v signatures for %d handshakes", signed, 2*rounds)
	}
	if c := condition(pool, v1alpha1.ConditionDevelopment); c != nil {
		t.Errorf("a pool without a token in software is for development: %+v", c)
	}
}
