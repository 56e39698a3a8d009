package trail

import (
	"cmp"
	"net/netip"

	"github.com/toolgate/toolgate/audit"
)

// OCSF 1.3: calls, ticket changes and most events are API activities, sign-in and
// sign-out are authentication.
const (
	ocsfVersion        = "1.3.0"
	ocsfAPIActivity    = 6003
	ocsfAuthentication = 3002
	ocsfOther          = 99
)

type object = map[string]any

// ocsfEvent returns a record as an event of the Open Cybersecurity Schema Framework. What
// the schema has no place for is in unmapped.
func ocsfEvent(x Row) object {
	class, activity := ocsfAPIActivity, ocsfOther
	source, failed := object{"name": cmp.Or(x.Transport, "toolgate")}, x.Code != ""
	if v := x.Event; v != nil {
		failed = v.Refused()
		if _, err := netip.ParseAddr(v.Source); err == nil {
			source = object{"ip": v.Source}
		} else if v.Source != "" { // "others", of a folded record
			source = object{"name": v.Source}
		}
		switch v.Name {
		case audit.EventSignIn, audit.EventSignInRefused:
			class, activity = ocsfAuthentication, 1
		case audit.EventSignOut:
			class, activity = ocsfAuthentication, 2
		}
	}
	status, severity := 1, 1 // success, informational
	if failed {
		status, severity = 2, 3
	}
	groups := []object{}
	for _, role := range x.Principal.Roles {
		groups = append(groups, object{"name": role})
	}
	user := object{"name": cmp.Or(x.Principal.Subject, "unknown"), "groups": groups}
	event := object{
		"metadata": object{"version": ocsfVersion, "uid": x.Hash, "correlation_uid": x.TraceID, "log_name": "audit", "sequence": x.Seq,
			"product": object{"name": "toolgate", "vendor_name": "toolgate"}},
		"time": x.Time.UnixMilli(), "category_uid": class / 1000, "class_uid": class, "activity_id": activity, "type_uid": class*100 + activity,
		"activity_name": cmp.Or(x.What(), string(x.Kind)), "severity_id": severity, "status_id": status, "status_code": x.Code, "status_detail": cmp.Or(x.Error, x.Result()),
		"actor": object{"user": user, "app_name": x.Principal.Client}, "src_endpoint": source, "unmapped": x.Record,
	}
	if class == ocsfAuthentication {
		event["user"], event["service"] = user, object{"name": "toolgate console"}
		return event
	}
	event["api"] = object{
		"operation": cmp.Or(x.What(), string(x.Kind)), "service": object{"name": cmp.Or(x.Server, "toolgate")}, "request": object{"uid": cmp.Or(x.DecisionID, x.Hash)},
		"response": object{"code": status - 1, "message": x.Result()},
	}
	return event
}
