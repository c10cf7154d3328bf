package hsmpool

import (
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/conditions"
	"qtls.dev/qtls/internal/hsm"
)

func luna() v1alpha1.HSMModule {
	return v1alpha1.HSMModule{
		Image: "luna:10", Folder: "/opt/luna", Path: "/opt/luna/lib.so",
		Files:       []v1alpha1.HSMModuleFiles{{Folder: "/etc/luna", ConfigMapRef: &v1alpha1.ConfigMapReference{Name: "luna"}}},
		Environment: []v1alpha1.HSMModuleVariable{{Name: "Conf", Value: "/etc/luna"}},
	}
}

func inPod(name string, module v1alpha1.HSMModule) v1alpha1.HSMMember {
	return v1alpha1.HSMMember{Name: name, Module: &v1alpha1.HSMModuleMember{HSMModule: module, HSMToken: v1alpha1.HSMToken{Token: name}}}
}

func TestALibraryInThePodsNeedsNoAddress(t *testing.T) {
	pool := &v1alpha1.HSMPool{}
	pool.Namespace, pool.Name = "shop", "prod"
	pool.Spec.Members = []v1alpha1.HSMMember{inPod("luna", luna()), {Name: "card", Daemon: &v1alpha1.HSMDaemon{Module: luna()}}}
	pool.Spec.Members[0].Module.Sessions = 16
	got, err := GatewayMembers(pool)
	if err != nil || len(got.Members) != 2 || got.Members[0] != (GatewayMember{Name: "luna", InPod: true, Sessions: 16}) || got.Members[1].InPod {
		t.Errorf("%+v, %v", got, err)
	}
	libraries, err := InPods(pool)
	if err != nil || len(libraries) != 1 || libraries[0].Member != "luna" || libraries[0].Token.Token != "luna" || libraries[0].Field != "spec.members[luna].module" {
		t.Errorf("the pods have %+v, %v", libraries, err)
	}
	// The operator has a daemon of its own with it.
	if d := daemonOf(pool, pool.Spec.Members[0]); d.address != "prod-luna-hsmd.shop.svc:7443" {
		t.Errorf("%+v", d)
	}
}

// Libraries of several members are in one process.
func TestLibrariesThatGetAlongInOnePod(t *testing.T) {
	utimaco := v1alpha1.HSMModule{Image: "utimaco:6", Folder: "/opt/utimaco", Path: "/opt/utimaco/lib.so",
		Environment: []v1alpha1.HSMModuleVariable{{Name: "Conf", Value: "/etc/luna"}, {Name: "CS_PKCS11_R3_CFG", Value: "/etc/utimaco/cfg"}}}
	for name, c := range map[string]struct {
		change func(*v1alpha1.HSMModule)
		says   string // "": they get along
	}{
		"another library":           {func(*v1alpha1.HSMModule) {}, ""},
		"the same one":              {func(m *v1alpha1.HSMModule) { *m = luna() }, ""},
		"a folder that only begins": {func(m *v1alpha1.HSMModule) { m.Folder = "/opt/luna2" }, ""},
		"the same, of another image": {func(m *v1alpha1.HSMModule) {
			*m = luna()
			m.Image = "luna:11"
		}, "folder /opt/luna overlaps /opt/luna"},
		"a folder inside":          {func(m *v1alpha1.HSMModule) { m.Folder = "/etc/luna/utimaco" }, "folder /etc/luna/utimaco overlaps /etc/luna"},
		"a folder around":          {func(m *v1alpha1.HSMModule) { m.Files = []v1alpha1.HSMModuleFiles{{Folder: "/opt"}} }, "folder /opt overlaps /opt/luna"},
		"a variable's other value": {func(m *v1alpha1.HSMModule) { m.Environment[0].Value = "/etc/utimaco" }, `variable Conf is "/etc/utimaco"`},
	} {
		t.Run(name, func(t *testing.T) {
			second := *utimaco.DeepCopy()
			c.change(&second)
			pool := &v1alpha1.HSMPool{}
			pool.Name = "prod"
			pool.Spec.Members = []v1alpha1.HSMMember{inPod("a", luna()), inPod("b", second)}
			libraries, err := InPods(pool)
			if c.says == "" {
				if err != nil || len(libraries) != 2 {
					t.Errorf("%+v, %v", libraries, err)
				}
				return
			}
			_, gateways := GatewayMembers(pool)
			for _, err := range []error{err, gateways} {
				if p, ok := conditions.AsProblem(err); !ok || p.Reason != v1alpha1.ReasonInvalid || !strings.Contains(p.Message, `HSMPool "prod": spec.members[b].module: its `+c.says) || !strings.Contains(p.Message, `member "a"`) {
					t.Errorf("%v\nwant %s", err, c.says)
				}
			}
		})
	}
}

// What is wrong is corrected where it stands.
func TestRemediesNameTheFieldsOfALibrary(t *testing.T) {
	token := v1alpha1.HSMToken{PINSecretRef: v1alpha1.SecretReference{Name: "luna-pin"}}
	module, daemon := v1alpha1.HSMMember{Name: "a", Module: &v1alpha1.HSMModuleMember{HSMToken: token}}, v1alpha1.HSMMember{Name: "a", Daemon: &v1alpha1.HSMDaemon{HSMToken: token}}
	for lastError, c := range map[string][3]string{ // the reason, and what a module's and a daemon's remedy says
		"C_Login: CKR_PIN_INCORRECT (0xa0)":             {v1alpha1.ReasonPINWrong, `the key "pin" of Secret "luna-pin"`, `the key "pin" of Secret "luna-pin"`},
		"C_Login: CKR_PIN_LOCKED (0xa4)":                {v1alpha1.ReasonPINLocked, `the key "pin" of Secret "luna-pin"`, `the key "pin" of Secret "luna-pin"`},
		"no such file: CKR_LIBRARY_LOAD_FAILED (0x1b7)": {v1alpha1.ReasonLibraryNotLoaded, "spec.members[a].module.path", "spec.members[a].daemon.module.path"},
		"no such token: CKR_TOKEN_NOT_PRESENT (0xe0)":   {v1alpha1.ReasonTokenNotFound, "spec.members[a].module.token or serial", "spec.members[a].daemon.token or serial"},
	} {
		for i, m := range []v1alpha1.HSMMember{module, daemon} {
			p := judge(Member{Name: "a", in: configuration(m)}, hsm.Status{State: v1alpha1.HSMMemberDown, LastError: lastError}, nil).Problem
			if p == nil || p.Reason != c[0] || !strings.Contains(p.Message, c[i+1]) {
				t.Errorf("%s: %v\nwant %s, saying %s", lastError, p, c[0], c[i+1])
			}
		}
	}
}
