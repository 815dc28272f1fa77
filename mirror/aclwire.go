package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/ledger"
)

// listACLs are all rules of a cluster; unknown is how many are of kinds that
// this release has no words for.
func listACLs(ctx context.Context, cl *kgo.Client) (out []ledger.ACL, unknown int, err error) {
	req := kmsg.NewPtrDescribeACLsRequest()
	req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	resp, err := req.RequestWith(ctx, cl)
	if err == nil {
		err = withText(resp.ErrorCode, resp.ErrorMessage)
	}
	if err != nil {
		return nil, 0, err
	}
	for _, res := range resp.Resources {
		for _, a := range res.ACLs {
			r := ledger.ACL{
				Resource: res.ResourceType.String(), Name: res.ResourceName, Pattern: res.ResourcePatternType.String(),
				Principal: a.Principal, Host: a.Host, Operation: a.Operation.String(), Permission: a.PermissionType.String(),
			}
			if _, err := parseACL(r); err != nil {
				unknown++
				continue
			}
			out = append(out, r)
		}
	}
	return out, unknown, nil
}

func withText(code int16, text *string) error {
	err := kerr.ErrorForCode(code)
	if err != nil && text != nil && *text != "" {
		return fmt.Errorf("%w (%s)", err, *text)
	}
	return err
}

// parseACL takes a rule's words back to numbers.
func parseACL(r ledger.ACL) (c kmsg.CreateACLsRequestCreation, err error) {
	var errs [4]error
	c = kmsg.NewCreateACLsRequestCreation()
	c.ResourceType, errs[0] = kmsg.ParseACLResourceType(r.Resource)
	c.ResourcePatternType, errs[1] = kmsg.ParseACLResourcePatternType(r.Pattern)
	c.Operation, errs[2] = kmsg.ParseACLOperation(r.Operation)
	c.PermissionType, errs[3] = kmsg.ParseACLPermissionType(r.Permission)
	c.ResourceName, c.Principal, c.Host = r.Name, r.Principal, r.Host
	for _, v := range []int8{int8(c.ResourceType), int8(c.ResourcePatternType), int8(c.Operation), int8(c.PermissionType)} {
		if v == 0 {
			errs[0] = errors.Join(errs[0], fmt.Errorf("rule %s is of a kind that is not known here", &r))
		}
	}
	return c, errors.Join(errs[:]...)
}

// aclChunk is how many rules one request carries: a controller refuses very
// large ones.
const aclChunk = 500

func createACLs(ctx context.Context, cl *kgo.Client, rules []ledger.ACL) error {
	for part := range slices.Chunk(rules, aclChunk) {
		req := kmsg.NewPtrCreateACLsRequest()
		for _, r := range part {
			c, err := parseACL(r)
			if err != nil {
				return err
			}
			req.Creations = append(req.Creations, c)
		}
		resp, err := req.RequestWith(ctx, cl)
		if err != nil {
			return fmt.Errorf("add ACLs on the destination: %w", err)
		}
		var errs []error
		for i, r := range resp.Results {
			if err := withText(r.ErrorCode, r.ErrorMessage); err != nil && len(errs) < 5 && i < len(part) {
				errs = append(errs, fmt.Errorf("add the ACL %s on the destination (needs Alter on the cluster there): %w", &part[i], err))
			}
		}
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
	}
	return nil
}

func deleteACLs(ctx context.Context, cl *kgo.Client, rules []ledger.ACL) error {
	for part := range slices.Chunk(rules, aclChunk) {
		req := kmsg.NewPtrDeleteACLsRequest()
		for _, r := range part {
			c, err := parseACL(r)
			if err != nil {
				return err
			}
			f := kmsg.NewDeleteACLsRequestFilter()
			f.ResourceType, f.ResourceName, f.ResourcePatternType = c.ResourceType, kmsg.StringPtr(r.Name), c.ResourcePatternType
			f.Principal, f.Host, f.Operation, f.PermissionType = kmsg.StringPtr(r.Principal), kmsg.StringPtr(r.Host), c.Operation, c.PermissionType
			req.Filters = append(req.Filters, f)
		}
		resp, err := req.RequestWith(ctx, cl)
		if err != nil {
			return fmt.Errorf("remove ACLs on the destination: %w", err)
		}
		for i, r := range resp.Results {
			if err := withText(r.ErrorCode, r.ErrorMessage); err != nil && i < len(part) {
				return fmt.Errorf("remove the ACL %s on the destination (needs Alter on the cluster there): %w", &part[i], err)
			}
		}
	}
	return nil
}
