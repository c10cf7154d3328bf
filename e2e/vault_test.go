//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/hsm"
)

// vault is a pod with tokens of kryoptic and several hsmds, which a test can kill, stop and make slow. Two of them have
// one token, as two machines may have a partition of one network HSM.
type vault struct {
	namespace
	host     string
	operator pair // the operator's certificate
	ca       pair
}

// vaultDaemon is an hsmd: its port, and which token and PIN it has. Its metrics are 100 ports further.
type vaultDaemon struct {
	port       int32
	token, pin string
}

const (
	portA, portB   = 7443, 7444
	portStranger   = 7445 // another token
	portForgetful  = 7446 // a token of its own, and a wrong PIN
	portTenMillis  = 7451 // a, which answers so much later
	portHalfSecond = 7452
	metricsFurther = 100
)

var vaultDaemons = map[string]vaultDaemon{
	"a": {portA, "shared", "pin"}, "b": {portB, "shared", "pin"}, "stranger": {portStranger, "other", "pin"}, "forgetful": {portForgetful, "third", "wrong-pin"},
}

// forSignature is long, here and in the daemons, for a machine may stand still: what is killed refuses connections, and is
// not waited for.
var forSignature = &metav1.Duration{Duration: time.Minute}

// supervise runs an hsmd, and again when it ends, unless it is to be away. The kubelet would wait ever longer with what
// crashes.
const supervise = `while :; do if [ ! -e /control/$0.away ]; then /usr/bin/hsmd --config /etc/vault/$0.conf & echo $! > /control/$0.pid; wait $!; fi; sleep 0.1; done`

func (n namespace) startVault() vault {
	n.Helper()
	v := vault{namespace: n, host: "vault." + n.name + ".svc", ca: newCA(n.T, "HSM CA", ecdsaP256)}
	v.operator = v.ca.issue(n.T, ecdsaP256, "operator")
	daemon := v.ca.issue(n.T, ecdsaP256, v.host)
	files := map[string]string{
		"ca.crt": string(v.ca.certPEM()), "tls.crt": string(daemon.certPEM()), "tls.key": string(daemon.keyPEM(n.T)),
		"pin": "a-pin-of-a-test", "so-pin": "another-pin-of-a-test", "wrong-pin": "not-the-pin-of-a-test",
	}
	mounts := []corev1.VolumeMount{{Name: "files", MountPath: "/etc/vault"}, {Name: "tokens", MountPath: "/tokens"}, {Name: "control", MountPath: "/control"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "vault", Labels: map[string]string{"app": "vault"}},
		Spec: corev1.PodSpec{
			SecurityContext: restrictedPod(), TerminationGracePeriodSeconds: ptr.To[int64](0),
			Volumes: []corev1.Volume{
				{Name: "files", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "vault", DefaultMode: ptr.To[int32](0o440)}}},
				{Name: "tokens", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "control", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vault"}, Spec: corev1.ServiceSpec{Selector: pod.Labels}}
	serve := func(name string, port int32) {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Port: port})
	}
	container := func(name, image string, env string, command ...string) corev1.Container {
		return corev1.Container{
			Name: name, Image: image, Command: command, SecurityContext: restrictedContainer(), VolumeMounts: mounts,
			Env: []corev1.EnvVar{{Name: "KRYOPTIC_CONF", Value: env}},
		}
	}
	for _, token := range []string{"shared", "other", "third"} {
		kryoptic := "/etc/vault/" + token + ".kryoptic"
		files[token+".kryoptic"] = fmt.Sprintf("[[slots]]\nslot = 1\ndbtype = \"sqlite\"\ndbargs = \"/tokens/%s.sql\"\n", token)
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container("init-"+token, image("hsm"), kryoptic, "/usr/bin/hsmd", "init-soft-token",
			"--module", "/usr/lib/pkcs11/libkryoptic_pkcs11.so", "--label", token, "--pin-file", "/etc/vault/pin", "--so-pin-file", "/etc/vault/so-pin"))
	}
	for name, d := range vaultDaemons {
		files[name+".conf"] = fmt.Sprintf(`[daemon]
listen = [::]:%d
metrics = [::]:%d
certificate-file = /etc/vault/tls.crt
key-file = /etc/vault/tls.key
client-ca-file = /etc/vault/ca.crt
[token]
module = /usr/lib/pkcs11/libkryoptic_pkcs11.so
token = %s
pin-file = /etc/vault/%s
timeout = 60000ms
[client operator]
keys = *
may = status, find, sign, generate, retire
[client gateways]
keys = *
may = status, find, sign
`, d.port, d.port+metricsFurther, d.token, d.pin)
		pod.Spec.Containers = append(pod.Spec.Containers, container(name, image("hsm"), "/etc/vault/"+d.token+".kryoptic", "sh", "-c", supervise, name))
		serve(name, d.port)
	}
	for name, r := range map[string]struct {
		port  int32
		delay string
	}{"ten-millis": {portTenMillis, "10ms"}, "half-second": {portHalfSecond, "500ms"}} {
		pod.Spec.Containers = append(pod.Spec.Containers, container(name, registry+"qtls-client:"+trixie, "",
			"qtls-probe-go1.27", "-relay", fmt.Sprintf(":%d", r.port), "-delay", r.delay, join("127.0.0.1", portA)))
		serve(name, r.port)
	}
	operator := v.operator.secret(n.T, "hsm-operator")
	operator.Data["ca.crt"] = v.ca.certPEM()
	// Gateways show what a PQCCertificate has given them.
	gateways := certificate("hsm-gateways", []v1alpha1.KeyAlgorithm{ecdsaP256}, "gateways")
	gateways.Spec.IssuerRef.Name, gateways.Spec.Usages = "hsm", []v1alpha1.CertificateUsage{v1alpha1.UsageClientAuth}
	n.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "vault"}, StringData: files}, service, pod, operator,
		v.ca.secret(n.T, "hsm-ca"), caIssuer("hsm", "hsm-ca"), gateways)
	eventually(n.T, forReady, "the tokens' pod runs", func(ctx context.Context) (bool, string) {
		ok, state := get(ctx, pod)
		return ok && isReady(pod), state + string(pod.Status.Phase)
	})
	return v
}

// pool of daemons in the vault.
func (v vault) pool(name string, members ...v1alpha1.HSMMember) *v1alpha1.HSMPool {
	return &v1alpha1.HSMPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: v.name, Name: name},
		Spec:       v1alpha1.HSMPoolSpec{Members: members, Timeout: forSignature},
	}
}

func (v vault) member(name string, port int32) v1alpha1.HSMMember {
	return v1alpha1.HSMMember{Name: name, Remote: &v1alpha1.RemoteHSM{
		Address: v1alpha1.StoreAddress(join(v.host, port)), TLSSecretRef: v1alpha1.SecretReference{Name: "hsm-operator"},
		GatewayTLSSecretRef: &v1alpha1.SecretReference{Name: "hsm-gateways-ecdsa-p256"},
	}}
}

// control does something with a daemon's process.
func (v vault) control(daemon, script string) {
	v.Helper()
	out, err := execIn(v.Context(), v.name, "vault", daemon, nil, "sh", "-c", script, daemon)
	if err != nil || out.code != 0 {
		v.Fatalf("%s of hsmd %s: %v %s", script, daemon, err, out.stderr)
	}
}

func (v vault) away(daemon string) {
	v.control(daemon, "touch /control/$0.away && kill -KILL $(cat /control/$0.pid)")
}

func (v vault) back(daemon string) { v.control(daemon, "rm /control/$0.away") }

// restart lets the token's sessions die.
func (v vault) restart(daemon string) { v.control(daemon, "kill -KILL $(cat /control/$0.pid)") }

// hang: connections are taken, and nothing is answered.
func (v vault) hang(daemon string) { v.control(daemon, "kill -STOP $(cat /control/$0.pid)") }

func (v vault) goOn(daemon string) { v.control(daemon, "kill -CONT $(cat /control/$0.pid)") }

// metricsOf a daemon.
func (v vault) metricsOf(daemon string) string {
	v.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v.name, Name: "vault"}}
	if ok, state := get(v.Context(), pod); !ok {
		v.Fatal(state)
	}
	return join(pod.Status.PodIP, vaultDaemons[daemon].port+metricsFurther)
}

// signed is how many signatures a daemon has made since it started.
func (v vault) signed(daemon string) float64 {
	v.Helper()
	return v.signatures(v.metricsOf(daemon))
}

// signatures that the hsmd with metrics at an address has made since it started. It gives who asks two seconds, which a
// machine that stands still may take.
func (n namespace) signatures(address string) (made float64) {
	n.Helper()
	eventually(n.T, forChange, "the hsmd at "+address+" tells its signatures", func(context.Context) (ok bool, state string) {
		made, ok, state = n.signaturesNow(address)
		return ok, state
	})
	return made
}

func (n namespace) signaturesNow(address string) (made float64, ok bool, state string) {
	n.Helper()
	text, ok := n.scrape(address)
	if !ok {
		return 0, false, text
	}
	return n.sum(text, "qtls_hsmd_requests_total", `operation="sign"`, `result="ok"`), true, ""
}

// waitSigning waits until a daemon makes signatures.
func (v vault) waitSigning(daemon string) {
	v.Helper()
	v.waitSignatures("hsmd "+daemon+" signs", forChange, func() string { return v.metricsOf(daemon) })
}

// waitSignatures waits until the hsmd with metrics at an address, which may be another one's from one look to the next, has
// made ten since it was first looked at, or started.
func (n namespace) waitSignatures(what string, limit time.Duration, address func() string) {
	n.Helper()
	before := math.Inf(1)
	eventually(n.T, limit, what, func(context.Context) (bool, string) {
		now, ok, state := n.signaturesNow(address())
		if !ok {
			return false, state
		}
		before = min(before, now)
		return now >= before+10, fmt.Sprintf("%v signatures, %v before", now, before)
	})
}

// client speaks to a daemon as the operator does, through the API server.
func (v vault) client(daemon string) *hsm.Client {
	v.Helper()
	transport, upgrader, err := spdy.RoundTripperFor(cluster.config)
	if err != nil {
		v.Fatal(err)
	}
	url := cluster.clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(v.name).Name("vault").SubResource("portforward").URL()
	stop, ready := make(chan struct{}), make(chan struct{})
	forward, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		[]string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", vaultDaemons[daemon].port)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		v.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forward.ForwardPorts() }()
	v.Cleanup(func() { close(stop) })
	select {
	case <-ready:
	case err := <-ended:
		v.Fatalf("port-forward to hsmd %s: %v", daemon, err)
	}
	ports, err := forward.GetPorts()
	if err != nil {
		v.Fatal(err)
	}
	config, err := hsm.Credentials{CA: v.ca.certPEM(), Certificate: v.operator.certPEM(), Key: v.operator.keyPEM(v.T)}.Config(v.host)
	if err != nil {
		v.Fatal(err)
	}
	c := hsm.New(join("127.0.0.1", int32(ports[0].Local)), config, forReady)
	v.Cleanup(c.Close)
	return c
}

// inHSM has a certificate's keys made in a pool.
func inHSM(c *v1alpha1.PQCCertificate, pool string) *v1alpha1.PQCCertificate {
	c.Spec.KeyStorage = v1alpha1.KeyStorage{Type: v1alpha1.KeyStorageHSM, HSMRef: &v1alpha1.HSMPoolReference{Name: pool}}
	return c
}

// secrets are all of the cluster, by namespace and name.
func (n namespace) secrets() map[string]map[string][]byte {
	n.Helper()
	var list corev1.SecretList
	if err := cluster.List(n.Context(), &list); err != nil {
		n.Fatal(err)
	}
	all := map[string]map[string][]byte{}
	for _, s := range list.Items {
		all[s.Namespace+"/"+s.Name] = maps.Clone(s.Data)
	}
	return all
}

// tlsSecret is the Secret of a PQCCertificate for an algorithm.
func (n namespace) tlsSecret(certificate string, algorithm v1alpha1.KeyAlgorithm) *corev1.Secret {
	n.Helper()
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: n.name, Name: certificate + "-" + strings.ToLower(string(algorithm))}
	if err := cluster.Get(n.Context(), key, s); err != nil {
		n.Fatal(err)
	}
	return s
}
