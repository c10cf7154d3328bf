package certificate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/keypair"
)

func TestWhoKeepsAFormerKey(t *testing.T) {
	key := formerKey{keypair.Reference{Pool: "a", Label: "web-1"}, issuedAt, ""}
	pod := func(age time.Duration, status *dataplane.Status) gatewayPod {
		return gatewayPod{corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", Labels: map[string]string{v1alpha1.LabelGateway: "edge"},
			CreationTimestamp: metav1.NewTime(issuedAt.Add(-age))}}, status}
	}
	runs := func(keys ...string) *dataplane.Status {
		return &dataplane.Status{Running: dataplane.Target{Revision: "r"}, HSMKeys: append([]string{}, keys...)}
	}
	const serves, unknown = `pod edge-1 of QTLSGateway "edge" serves a certificate with it`, `what pod edge-1 of QTLSGateway "edge" serves is not known`
	for name, c := range map[string]struct {
		pods []gatewayPod
		want string
	}{
		"there is no pod":                       {nil, ""},
		"a pod without keys in HSMs":            {[]gatewayPod{pod(time.Hour, runs())}, ""},
		"a pod that has followed":               {[]gatewayPod{pod(time.Hour, runs("pkcs11:token=a;object=web-2;type=private"))}, ""},
		"a pod that has not":                    {[]gatewayPod{pod(time.Hour, runs("pkcs11:token=a;object=web-1;type=private"))}, serves},
		"by another pool":                       {[]gatewayPod{pod(-time.Hour, runs("pkcs11:token=b;object=web-1;type=private"))}, serves},
		"a pod that would when HAProxy is back": {[]gatewayPod{pod(-time.Hour, &dataplane.Status{HSMKeys: []string{"pkcs11:token=a;object=web-1;type=private"}})}, serves},
		"a pod whose agent is silent":           {[]gatewayPod{pod(0, nil)}, unknown},
		"a pod that serves nothing":             {[]gatewayPod{pod(0, &dataplane.Status{})}, unknown},
		"a pod of a release that does not tell": {[]gatewayPod{pod(time.Hour, &dataplane.Status{Running: dataplane.Target{Revision: "r"}})}, unknown},
		"a silent one that came later":          {[]gatewayPod{pod(-time.Second, nil)}, ""},
		"the second of two":                     {[]gatewayPod{pod(time.Hour, runs()), pod(0, nil)}, unknown},
	} {
		if got := whoKeeps(key, c.pods); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
