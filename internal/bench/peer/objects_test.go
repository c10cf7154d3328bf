package peer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/bench/generator"
	"qtls.dev/qtls/internal/resources"
)

var (
	hybrid    = v1alpha1.BenchmarkMode{Name: "hybrid", Groups: []v1alpha1.Group{"X25519MLKEM768"}, SignatureSchemes: []v1alpha1.SignatureScheme{"mldsa65"}}
	classical = v1alpha1.BenchmarkMode{Name: "classical", Groups: []v1alpha1.Group{"x25519", "X25519MLKEM768"}, SignatureSchemes: []v1alpha1.SignatureScheme{"rsa_pss_rsae_sha256", "ecdsa_secp256r1_sha256"}}
	kpqc      = v1alpha1.BenchmarkMode{Name: "kpqc", Groups: []v1alpha1.Group{"smaug_t1"}, SignatureSchemes: []v1alpha1.SignatureScheme{"haetae2"}}
)

func TestAModeIsMeasuredWithTheCertificateThatTheGatewayWouldServe(t *testing.T) {
	pq, p256, rsa := Certificate{Secret: "web-ml-dsa-65", Algorithm: "ML-DSA-65"}, Certificate{Secret: "web-ecdsa-p256", Algorithm: "ECDSA-P256"}, Certificate{Secret: "web-rsa", Algorithm: "RSA-4096"}
	either := hybrid
	either.SignatureSchemes = []v1alpha1.SignatureScheme{"mldsa65", "ecdsa_secp256r1_sha256", "rsa_pss_rsae_sha256"}
	const classicalFirst = v1alpha1.PreferClassical
	for name, c := range map[string]struct {
		mode       v1alpha1.BenchmarkMode
		preference v1alpha1.CertificatePreference
		of         []Certificate
		want       Certificate
		says       string
	}{
		"post-quantum":                       {hybrid, "", []Certificate{p256, pq, rsa}, pq, ""},
		"classical":                          {classical, "", []Certificate{pq, rsa}, rsa, ""},
		"the strongest":                      {classical, "", []Certificate{rsa, p256}, p256, ""},
		"none that it takes":                 {hybrid, "", []Certificate{rsa, p256}, Certificate{}, `mode "hybrid" accepts none`},
		"post-quantum of both":               {either, v1alpha1.PreferPostQuantum, []Certificate{rsa, p256, pq}, pq, ""},
		"classical of both":                  {either, classicalFirst, []Certificate{pq, rsa, p256}, p256, ""},
		"classical first, and there is none": {either, classicalFirst, []Certificate{pq}, pq, ""},
		"classical first, and not accepted":  {hybrid, classicalFirst, []Certificate{p256, pq}, pq, ""},
	} {
		got, err := Choose(c.mode, c.preference, c.of)
		if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestAPeerOffersWhatItsModesAskFor(t *testing.T) {
	upload := hybrid
	upload.Name, upload.Operation = "upload", v1alpha1.BenchmarkOperationTransfer
	all := []v1alpha1.BenchmarkMode{hybrid, classical, kpqc, upload}
	for name, c := range map[string]struct {
		modes []string
		want  []string
		says  string
	}{
		"two modes":          {[]string{"hybrid", "classical"}, []string{"X25519MLKEM768", "X25519"}, ""},
		"a provider's":       {nil, nil, `peer "plain" has no group smaug_t1, which mode "kpqc" asks for`},
		"none that is one":   {[]string{"hybrid", "other"}, nil, `mode "other" of peer "plain" is none of spec.modes`},
		"with data":          {[]string{"hybrid", "upload"}, nil, `mode "upload" has the operation Transfer, and peer "plain" has nothing behind it`},
		"in its own order":   {[]string{"classical"}, []string{"X25519", "X25519MLKEM768"}, ""},
		"one mode is enough": {[]string{"hybrid"}, []string{"X25519MLKEM768"}, ""},
	} {
		got, err := Groups(v1alpha1.BenchmarkPeer{Name: "plain", Modes: c.modes}, all)
		if !slices.Equal(got, c.want) || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestAPeerRunsBesideTheGatewayWithItsResourcesAndCertificates(t *testing.T) {
	b := &v1alpha1.QTLSBenchmark{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "scaling", UID: "uid"}}
	quota := corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}}
	g := &v1alpha1.QTLSGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: v1alpha1.QTLSGatewaySpec{Resources: &quota}}
	s := Server{Peer: v1alpha1.BenchmarkPeer{Name: "nginx", Server: v1alpha1.BenchmarkPeerNGINX}, Image: "nginx:1", Secrets: []string{"web-ml-dsa-65", "web-rsa"}, Groups: groups, Replicas: 4}
	d := Deployment(b, g, s, generator.Settings{ImagePullSecrets: []string{"pull"}})
	pod := d.Spec.Template
	container := pod.Spec.Containers[0]
	if d.Name != "scaling-peer-nginx" || *d.Spec.Replicas != 4 || container.Image != "nginx:1" || container.Command[0] != "nginx" || !container.Resources.Limits.Cpu().Equal(resource.MustParse("50m")) || pod.Spec.ImagePullSecrets[0].Name != "pull" {
		t.Errorf("got %+v", d)
	}
	terms := pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(terms) != 1 || terms[0].TopologyKey != corev1.LabelHostname || terms[0].LabelSelector.MatchLabels[v1alpha1.LabelGateway] == "" {
		t.Errorf("it is not where the gateway is: %+v", terms)
	}
	for key, value := range resources.Selector("web") {
		if pod.Labels[key] == value {
			t.Errorf("label %s=%s makes it a pod of the gateway", key, value)
		}
	}
	for key, value := range Selector("scaling", "nginx") {
		if pod.Labels[key] != value {
			t.Errorf("the selector's label %s is %q", key, pod.Labels[key])
		}
	}
	mounted := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.Secret == nil {
			continue
		}
		for _, m := range container.VolumeMounts {
			if m.Name == v.Name {
				mounted[v.Secret.SecretName] = m.MountPath
			}
		}
	}
	config := fileIn(t, pod, folder+"/nginx.conf")
	if !strings.Contains(config, "worker_processes 1;") {
		t.Errorf("more workers than a quota of 50m is for:\n%s", config)
	}
	for secret, path := range mounted {
		if !strings.Contains(config, "ssl_certificate "+path+"/tls.pem;") || !strings.Contains(config, "ssl_certificate_key "+path+"/tls.pem.key;") {
			t.Errorf("nothing serves Secret %s at %s:\n%s", secret, path, config)
		}
	}
	service := Service(b, s)
	if len(mounted) != 2 || len(service.Spec.Ports) != 2 || service.Spec.Ports[1].Port != Port(1) || service.Name != d.Name {
		t.Errorf("Secrets %v, ports %+v", mounted, service.Spec.Ports)
	}
	// Another configuration is another rollout.
	s.Groups = groups[:1]
	if again := Deployment(b, g, s, generator.Settings{}); again.Spec.Template.Annotations[AnnotationConfig] == pod.Annotations[AnnotationConfig] {
		t.Error("pods of another configuration are taken for the same")
	}
}

// fileIn a pod's only container, of the downward API.
func fileIn(t *testing.T, pod corev1.PodTemplateSpec, path string) string {
	t.Helper()
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			if v.Name != m.Name || v.DownwardAPI == nil {
				continue
			}
			for _, item := range v.DownwardAPI.Items {
				for name, value := range pod.Annotations {
					if m.MountPath+"/"+item.Path == path && item.FieldRef.FieldPath == fmt.Sprintf("metadata.annotations['%s']", name) {
						return value
					}
				}
			}
		}
	}
	t.Fatalf("nothing is at %s: %+v", path, pod.Spec.Volumes)
	return ""
}
