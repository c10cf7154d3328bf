package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of every Q-TLS resource.
const GroupName = "qtls.dev"

// GroupVersion is the group and version of the types in this package.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// AddToScheme registers the types of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&QTLSGateway{}, &QTLSGatewayList{},
		&QTLSPolicy{}, &QTLSPolicyList{},
		&PQCCertificate{}, &PQCCertificateList{},
		&PQCIssuer{}, &PQCIssuerList{},
		&PQCClusterIssuer{}, &PQCClusterIssuerList{},
		&HSMPool{}, &HSMPoolList{},
		&QTLSBenchmark{}, &QTLSBenchmarkList{},
		&QTLSBenchmarkSchedule{}, &QTLSBenchmarkScheduleList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
