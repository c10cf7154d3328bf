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
			CreationTimestamp: metav1.NewTime(issuedAt.Add(-age))}, Spec: corev1.PodSpec{NodeName: "node-1"}}, status}
	}
	unscheduled := pod(0, nil)
	unscheduled.Spec.NodeName = ""
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
		"a silent one that came later":          {[]gatewayPod{pod(-around-time.Second, nil)}, ""},
		"a silent one that came meanwhile":      {[]gatewayPod{pod(-around, nil)}, unknown},
		"a silent one that never ran":           {[]gatewayPod{unscheduled}, ""},
		"the second of two":                     {[]gatewayPod{pod(time.Hour, runs()), pod(0, nil)}, unknown},
	} {
		if got := whoKeeps(key, c.pods); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Of a pod that is starting its node may not have said so yet.
func TestWhichPodsNeverRan(t *testing.T) {
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}
	running := corev1.ContainerStatus{ContainerID: "containerd://1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	crashing := waiting
	crashing.ContainerID, crashing.RestartCount = "containerd://1", 1
	for name, c := range map[string]struct {
		node             string
		init, containers []corev1.ContainerStatus
		want             bool
	}{
		"no node has room":             {"", nil, nil, true},
		"its node has said nothing":    {"node-1", nil, nil, false},
		"its images are not there":     {"node-1", nil, []corev1.ContainerStatus{waiting, waiting}, true},
		"one of two runs":              {"node-1", nil, []corev1.ContainerStatus{waiting, running}, false},
		"one that crashes":             {"node-1", nil, []corev1.ContainerStatus{crashing}, false},
		"one that comes before others": {"node-1", []corev1.ContainerStatus{running}, []corev1.ContainerStatus{waiting}, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: c.node}, Status: corev1.PodStatus{InitContainerStatuses: c.init, ContainerStatuses: c.containers}}
		if got := neverRan(p); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
